"""Callers: keys, users, organizations, sign-in and sessions.

Modules:
    audit             The audit log: who did what to whom, when and from where; written in the transaction that
                      does it
    caller            The caller: the identity and permissions behind a valid key
    directory         Access control in one place: keys, passwords, users, limits, sessions, the audit log
    etcd_members        Calls to etcd's JSON gateway (v3) at whichever member answers
    gate              The gate: it resolves a token to a caller and makes clients that keep sending wrong tokens
                      wait
    key_cache         Caches the callers of keys: drops the least recently used first, and changed ones at once
    key_changes       Changes to keys, users and limits in the audit log since the last read
    key_queries       Queries for keys: with their users, and only while both are valid
    key_rows          Keys as data: their permissions, their public form, and their database rows
    key_watch         Keeps cached callers current: polls for changes by other processes
    keys              API keys: random, shown once, kept as a keyed hash; a bearer token becomes a caller
    oidc              OpenID Connect as a relying party: authorization code with PKCE, and an ID token that is
                      checked in full
    password_gate     The gate for users with passwords: it limits parallel hashing, and makes clients that keep
                      guessing wait
    password_hash     Password hashes: Argon2id with a salt and parameters for each
    passwords         Passwords and the one-time links for choosing one
    provider_answers  Answers of an identity provider, bounded in time and size, and the errors if there is none
    quotas            Stored limits: admins set and delete them, and each key is read with those that apply to it
    races             Races of two admins: the database allows one change, and the other gets an error
    secret            The secret that keys and sessions are hashed with; gateways that share a database need the
                      same one
    sessions          Console sessions: stored as a keyed hash, ended by sign-out, by an admin, or with their key
                      or user
    shared_revocations  Revoked keys shared through etcd: every gateway refuses them a moment later, even if the
                        database is away
    sign_in           Sign-in through an identity provider: by subject, by verified address, or as a new user if
                      allowed
    tables            Tables of organizations, users, keys, passwords, sessions, limits, and the audit log of their
                      changes
    users            Organizations and their users: membership, roles, and the rule that one instance admin always
                      stays
"""

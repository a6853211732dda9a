"""Identify who trades: identities that outlive their keys, and what other gateways can check about them.

Modules:
    connected     Select which statements can matter to an identity: those by its own keys, up to a limit
    keys          Define Ed25519 keys, and the identities that begin with one
    lineage       Work out which keys an identity has had, and how far each is trusted now, from its own signed
                  statements
    pseudonyms    Derive a separate buyer's key for every seller, so that sellers cannot tell that they serve the
                  same buyer
    recovery_key  Write and read the recovery key as text for paper or a USB stick, with a checksum against copying
                  errors
    statements    Sign and check an identity's statements about its keys: its founding, rotations and revocations
"""

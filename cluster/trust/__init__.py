"""Identities of machines: keys, the authority that certifies them, and the renewal of certificates.

Modules:
    addresses  The addresses at which processes of a cluster listen, and whether other machines can reach them
    authority  The cluster's certificate authority: a join token, used once, turns a machine's key into a
               certificate
    identity   The identity of a process: key, certificate, TLS contexts that demand the same of peers, removed
               machines
    machines   The book of admitted machines: their names, and which of them are drained or removed
    renewal    Renewal of the short-lived certificates: each one when a third of its time is left, while links go
               on
"""

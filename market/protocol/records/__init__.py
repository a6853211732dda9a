"""Define the signed records that gateways exchange, and which of them count.

Modules:
    amounts     Encode money in signed records: nano-USD as decimal strings, because JSON's numbers are not exact
                enough
    book        Collect the records that a gateway knows, and merge those of two gateways: the highest revision
                stays
    canonical   Write JSON in one canonical form (RFC 8785), so that anyone can reproduce the signed bytes
    envelope    Define the envelope of everything that gateways sign: the issuer, the kind, the revision, and the
                expiry
    exchange    Find out what another gateway lacks without sending everything: compare hashes of buckets, then
                send unequal ones
    key_status  Check whether a key may speak for an identity
"""

"""Encrypt bodies so that only the buyer and the seller can read them, and no machine that forwards them.

Modules:
    agreement  Agree on keys between two gateways: X25519 with a key of the request, HKDF-SHA256 over the whole
               context
    request    Seal a request and its answer, and open both
    seen       Remember which requests were opened with one sealing key, so that none is answered twice
    stream     Seal a sequence of pieces: none can be changed, omitted, duplicated, moved or added, and the end is
               certain
"""

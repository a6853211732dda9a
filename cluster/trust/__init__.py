"""Identities of machines: keys, the authority that certifies them, and the renewal of certificates."""

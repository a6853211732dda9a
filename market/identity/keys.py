"""Ed25519 keys, and the identities that begin with one.

An identity's id is the SHA-256 of the public key that it began with, in hex; with a recovery key, of both, one
after the other. The recovery key is kept elsewhere, and outranks every other: who steals a key without it can
stop an identity, but not become it.
"""

import hashlib

from accounting.proofs.signing import Signer, fingerprint_of


def identity_of(root_key: bytes, recovery_key: bytes = b"") -> str:
    """The id of the identity that begins with these public keys."""
    return hashlib.sha256(root_key + recovery_key).hexdigest()


def signer_of(seed: bytes) -> Signer:
    """The key that these 32 bytes are, for keys that are derived and stored nowhere."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.from_private_bytes(seed)
    public = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return Signer(fingerprint_of(public), public, key.sign)

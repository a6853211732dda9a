"""Define Ed25519 keys, and the identities that begin with one.

An identity's id is the SHA-256 in hex of its first public key, or of first and recovery key together. The recovery
key is stored elsewhere and outranks every other. A thief of a key without it can stop an identity, but not become
it.
"""

import hashlib

from accounting.proofs.signing_key import Signer, fingerprint_of


def identity_of(root_key: bytes, recovery_key: bytes = b"") -> str:
    """Return the id of the identity that begins with these public keys."""
    return hashlib.sha256(root_key + recovery_key).hexdigest()


def signer_of(seed: bytes) -> Signer:
    """Return the key that these 32 bytes are. For derived keys, which are stored nowhere."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.from_private_bytes(seed)
    public = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return Signer(fingerprint_of(public), public, key.sign)

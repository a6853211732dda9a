"""Agree on keys between two gateways: X25519 with a key of the request, HKDF-SHA256 over the whole context.

    shared   = X25519(request's own key, seller's sealing key)
    request  = HKDF(shared, salt = own key,                   info = DOMAIN "request" + context)
    response = HKDF(shared, salt = own key || seller's nonce, info = DOMAIN "response" + context)

The context is what both know about the request: channel, lane, number, seller, sealing key. If they disagree on
any of it, nothing can be opened. The seller's signed listing has the sealing key, which binds it to its identity.
The seller replaces it often and forgets the old one; after that, no one can read what was sent. The seller's nonce
makes the keys of an answer new even if a request is answered twice.
"""

from dataclasses import dataclass
from typing import Literal

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from market.errors import SealBroken
from market.protocol.records.canonical import canonical

DOMAIN = b"millrace market seal 1 "
KEY_BYTES = 32
NONCE_BYTES = 12

Direction = Literal["request", "response"]


@dataclass(frozen=True, slots=True)
class Context:
    """The context that a sealed request belongs to. It is unique, because a lane's numbers are used once."""

    channel: str
    lane: int
    seq: int
    seller: str

    def bound_to(self, sealing_key: bytes) -> bytes:
        members = {
            "channel": self.channel,
            "lane": self.lane,
            "sealing_key": sealing_key.hex(),
            "seller": self.seller,
            "seq": self.seq,
        }
        return canonical(members)


@dataclass(frozen=True, slots=True)
class Keys:
    """Key and first nonce of one direction of one request."""

    key: bytes
    nonce: bytes


@dataclass(frozen=True, slots=True)
class Agreement:
    """The secrets that both sides share for one request."""

    shared: bytes
    own_key: bytes
    context: bytes

    def keys(self, direction: Direction, seller_nonce: bytes = b"") -> Keys:
        info = DOMAIN + direction.encode() + b"\n" + self.context
        derived = HKDF(hashes.SHA256(), KEY_BYTES + NONCE_BYTES, self.own_key + seller_nonce, info)
        material = derived.derive(self.shared)
        return Keys(material[:KEY_BYTES], material[KEY_BYTES:])


class SealingKey:
    """A seller's X25519 key, in memory only."""

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.public = _raw(self._private.public_key())

    def agree(self, own_key: bytes, context: Context) -> Agreement:
        """Return the seller's side, from the public key that came with the request.

        Raises:
            SealBroken: that key is unusable.
        """
        return Agreement(_exchange(self._private, own_key), own_key, context.bound_to(self.public))


def agree_with(sealing_key: bytes, context: Context) -> Agreement:
    """Return the buyer's side, with a new key of its own for this request only.

    Raises:
        SealBroken: the seller's sealing key is unusable.
    """
    private = X25519PrivateKey.generate()
    own_key = _raw(private.public_key())
    return Agreement(_exchange(private, sealing_key), own_key, context.bound_to(sealing_key))


def _exchange(private: X25519PrivateKey, public: bytes) -> bytes:
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        # This includes keys for which the result would be all zeros, whatever our key is.
        raise SealBroken("the other side's key is not a usable X25519 key") from None


def _raw(key: X25519PublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)

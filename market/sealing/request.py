"""A sealed request and its sealed answer, from both ends.

A request travels as 32 bytes of the buyer's key for it, and then as pieces of a sealed stream, each with its
length in four bytes before it. An answer begins with the seller's nonce of 32 bytes, and its pieces travel as its
carrier wants them: an event each, for instance.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from market.errors import SealBroken
from market.sealing.agreement import KEY_BYTES, Agreement, Context, Keys, SealingKey, agree_with
from market.sealing.seen import Seen
from market.sealing.stream import PIECE_BYTES_MAX, Opener, Sealer

BODY_BYTES_MAX = 2**24
SEALED_BYTES_MAX = BODY_BYTES_MAX + 2**16
SELLER_NONCE_BYTES = 32
_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class SealedRequest:
    """The buyer's end: what to send, and how to open what comes back. `digest` is what a voucher names."""

    sealed: bytes
    agreement: Agreement

    @property
    def digest(self) -> str:
        return digest_of(self.sealed)

    def answer(self, seller_nonce: bytes) -> Opener:
        """Opens the answer that began with this nonce.

        Raises:
            SealBroken: it is no nonce.
        """
        return Opener(self.agreement.keys("response", _checked_nonce(seller_nonce)))


@dataclass(frozen=True, slots=True)
class OpenedRequest:
    """The seller's end: what was asked, and how to seal the answer to it."""

    body: bytes
    agreement: Agreement

    def answer(self) -> tuple[bytes, Sealer]:
        """A new nonce, to be sent first, and what seals the answer."""
        nonce = os.urandom(SELLER_NONCE_BYTES)
        return nonce, Sealer(self.agreement.keys("response", nonce))


def seal_request(body: bytes, sealing_key: bytes, context: Context) -> SealedRequest:
    """Seal a body for the seller who has published this key.

    Raises:
        SealBroken: the key is none, or the body is too large.
    """
    if len(body) > BODY_BYTES_MAX:
        raise SealBroken(f"a request has {len(body)} bytes, and {BODY_BYTES_MAX} are the most")
    agreement = agree_with(sealing_key, context)
    sealer = Sealer(agreement.keys("request"))
    starts = range(0, max(1, len(body)), PIECE_BYTES_MAX)
    pieces = [sealer.seal(body[at : at + PIECE_BYTES_MAX], is_last=at == starts[-1]) for at in starts]
    framed = (len(piece).to_bytes(_LENGTH_BYTES) + piece for piece in pieces)
    return SealedRequest(agreement.own_key + b"".join(framed), agreement)


def open_request(sealed: bytes, key: SealingKey, context: Context, seen: Seen) -> OpenedRequest:
    """Open a request that came from anywhere, once.

    Raises:
        SealBroken: it was not sealed with this key about this, was changed, or came before.
    """
    if len(sealed) > SEALED_BYTES_MAX:
        raise SealBroken(f"a sealed request has {len(sealed)} bytes, and {SEALED_BYTES_MAX} are the most")
    own_key = sealed[:KEY_BYTES]
    agreement = key.agree(own_key, context)
    body = open_with(sealed, agreement.keys("request"))
    # Only now: what cannot be opened takes no room among those that were seen.
    seen.add(own_key)
    return OpenedRequest(body, agreement)


def open_with(sealed: bytes, keys: Keys) -> bytes:
    """The body of a sealed request for whoever was shown its keys: the house, in a dispute.

    Raises:
        SealBroken: they are not its keys, or it was changed.
    """
    opener = Opener(keys)
    body = b"".join(map(opener.open, _pieces(sealed[KEY_BYTES:])))
    opener.finish()
    return body


def digest_of(sealed: bytes) -> str:
    return hashlib.sha256(sealed).hexdigest()


def _pieces(framed: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(framed):
        begin = at + _LENGTH_BYTES
        at = begin + int.from_bytes(framed[at:begin])
        if at > len(framed):
            raise SealBroken("a request was cut short")
        yield framed[begin:at]


def _checked_nonce(nonce: bytes) -> bytes:
    if len(nonce) != SELLER_NONCE_BYTES:
        raise SealBroken(f"an answer begins with a nonce of {SELLER_NONCE_BYTES} bytes")
    return nonce

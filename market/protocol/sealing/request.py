"""Seal a request and its answer, and open both.

A request is sent as 32 bytes of the buyer's key for it, followed by the pieces of a sealed stream, each after its
length in four bytes. An answer begins with the seller's nonce of 32 bytes. Its carrier frames the pieces, for
example as one event each.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

from market.errors import SealBroken
from market.protocol.sealing.agreement import KEY_BYTES, Agreement, Context, Keys, SealingKey, agree_with
from market.protocol.sealing.seen import Seen
from market.protocol.sealing.stream import PIECE_BYTES_MAX, Opener, Sealer

BODY_BYTES_MAX = 2**24
SEALED_BYTES_MAX = BODY_BYTES_MAX + 2**16
SELLER_NONCE_BYTES = 32
_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class SealedRequest:
    """The buyer's end: what to send, and how to open the answer. A voucher names `digest`."""

    sealed: bytes
    agreement: Agreement

    @property
    def digest(self) -> str:
        return digest_of(self.sealed)

    def answer(self, seller_nonce: bytes) -> Opener:
        """Return the opener of the answer that began with this nonce.

        Raises:
            SealBroken: the nonce is invalid.
        """
        return Opener(self.agreement.keys("response", _checked_nonce(seller_nonce)))


@dataclass(frozen=True, slots=True)
class OpenedRequest:
    """The seller's end: the request's body, and how to seal the answer."""

    body: bytes
    agreement: Agreement

    def answer(self) -> tuple[bytes, Sealer]:
        """Return a new nonce, to be sent first, and the sealer of the answer."""
        nonce = os.urandom(SELLER_NONCE_BYTES)
        return nonce, Sealer(self.agreement.keys("response", nonce))


def seal_request(body: bytes, sealing_key: bytes, context: Context) -> SealedRequest:
    """Seal a body for the seller that published this key.

    Raises:
        SealBroken: the key is invalid, or the body is too large.
    """
    if len(body) > BODY_BYTES_MAX:
        raise SealBroken(f"a request has {len(body)} bytes, more than the maximum of {BODY_BYTES_MAX}")
    agreement = agree_with(sealing_key, context)
    sealer = Sealer(agreement.keys("request"))
    starts = range(0, max(1, len(body)), PIECE_BYTES_MAX)
    pieces = [sealer.seal(body[at : at + PIECE_BYTES_MAX], is_last=at == starts[-1]) for at in starts]
    framed = (len(piece).to_bytes(_LENGTH_BYTES) + piece for piece in pieces)
    return SealedRequest(agreement.own_key + b"".join(framed), agreement)


def open_request(sealed: bytes, key: SealingKey, context: Context, seen: Seen) -> OpenedRequest:
    """Open a request from an untrusted source, once.

    Raises:
        SealBroken: it was not sealed with this key and context, was changed, or came before.
    """
    if len(sealed) > SEALED_BYTES_MAX:
        raise SealBroken(f"a sealed request has {len(sealed)} bytes, more than the maximum of {SEALED_BYTES_MAX}")
    own_key = sealed[:KEY_BYTES]
    agreement = key.agree(own_key, context)
    body = open_with(sealed, agreement.keys("request"))
    # Add it only now, so that requests that cannot be opened take no space.
    seen.add(own_key)
    return OpenedRequest(body, agreement)


def open_with(sealed: bytes, keys: Keys) -> bytes:
    """Return the body of a sealed request to a party that was shown its keys: the marketplace, in a dispute.

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
        raise SealBroken(f"an answer must begin with a nonce of {SELLER_NONCE_BYTES} bytes")
    return nonce

"""The strict format of a seller's event stream: a nonce, sealed pieces and keep-alive events.

    event: nonce            once, first
    data: <base64>

    data: <base64>          a sealed piece

    event: wait             keep-alive
    data: -

The format allows no comments, ids, retry times, carriage returns or multi-line events. We do not trust the seller,
and a format with only one form is easy to check.
"""

import binascii
from dataclasses import dataclass

from market.buyer.errors import Garbled
from market.protocol.sealing.request import SELLER_NONCE_BYTES
from market.protocol.sealing.stream import PIECE_BYTES_MAX

EVENT_BYTES_MAX = (PIECE_BYTES_MAX + 256) * 4 // 3 + 64
"""The size limit of one event: a sealed piece in base64 and its field names."""
WAITS_MAX = 1000

_NONCE = b"event: nonce\ndata: "
_WAIT = b"event: wait\ndata: -"
_DATA = b"data: "


@dataclass(frozen=True, slots=True)
class Nonce:
    """The first event, from which the answer's keys are derived."""

    value: bytes


@dataclass(frozen=True, slots=True)
class Sealed:
    """A sealed piece of the answer, not yet opened."""

    piece: bytes


Event = Nonce | Sealed


class Carrier:
    """Split a byte stream into events."""

    def __init__(self) -> None:
        self._held = b""
        self._has_nonce = False
        self._waits = 0

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that are complete now, without keep-alives.

        Raises:
            Garbled: the bytes are not a seller's event stream.
        """
        *events, self._held = (self._held + data).split(b"\n\n")
        if len(self._held) > EVENT_BYTES_MAX:
            raise Garbled("an event is too long")
        return [event for raw in events if (event := self._event(raw)) is not None]

    def _event(self, raw: bytes) -> Event | None:
        if len(raw) > EVENT_BYTES_MAX:
            raise Garbled("an event is too long")
        if raw == _WAIT:
            self._waits += 1
            if self._waits > WAITS_MAX:
                raise Garbled("it sends only keep-alives")
            return None
        if not self._has_nonce:
            return self._nonce(raw)
        if not raw.startswith(_DATA):
            raise Garbled("an event has an unknown form")
        return Sealed(_decoded(raw.removeprefix(_DATA)))

    def _nonce(self, raw: bytes) -> Nonce:
        value = _decoded(raw.removeprefix(_NONCE)) if raw.startswith(_NONCE) else b""
        if len(value) != SELLER_NONCE_BYTES:
            raise Garbled("its first event is not a nonce")
        self._has_nonce = True
        return Nonce(value)


def _decoded(text: bytes) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error:
        raise Garbled("an event's data is not base64") from None

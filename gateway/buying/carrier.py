"""What a seller's event stream may consist of, and nothing else: its nonce, sealed pieces, signs of life.

    event: nonce            once, first
    data: <base64>

    data: <base64>          a sealed piece

    event: wait             while nothing comes
    data: -

No comments, no ids, no retry times, no carriage returns, no event over two lines: a stranger wrote this, and what
has one form only is easily checked.
"""

import binascii
from dataclasses import dataclass

from gateway.buying.errors import Garbled
from market.sealing.request import SELLER_NONCE_BYTES
from market.sealing.stream import PIECE_BYTES_MAX

EVENT_BYTES_MAX = (PIECE_BYTES_MAX + 256) * 4 // 3 + 64
"""A sealed piece in base64, with the words around it."""
WAITS_MAX = 1000

_NONCE = b"event: nonce\ndata: "
_WAIT = b"event: wait\ndata: -"
_DATA = b"data: "


@dataclass(frozen=True, slots=True)
class Nonce:
    """The first event: what the answer's keys are made with."""

    value: bytes


@dataclass(frozen=True, slots=True)
class Sealed:
    """A piece of the answer, to be opened."""

    piece: bytes


Event = Nonce | Sealed


class Carrier:
    """Cuts a stream of bytes into its events."""

    def __init__(self) -> None:
        self._held = b""
        self._has_nonce = False
        self._waits = 0

    def feed(self, data: bytes) -> list[Event]:
        """The events that are whole now; signs of life are left out.

        Raises:
            Garbled: it is no such stream.
        """
        *events, self._held = (self._held + data).split(b"\n\n")
        if len(self._held) > EVENT_BYTES_MAX:
            raise Garbled("an event is longer than any may be")
        return [event for raw in events if (event := self._event(raw)) is not None]

    def _event(self, raw: bytes) -> Event | None:
        if len(raw) > EVENT_BYTES_MAX:
            raise Garbled("an event is longer than any may be")
        if raw == _WAIT:
            self._waits += 1
            if self._waits > WAITS_MAX:
                raise Garbled("it says that it is still there, and nothing else")
            return None
        if not self._has_nonce:
            return self._nonce(raw)
        if not raw.startswith(_DATA):
            raise Garbled("an event is none that sellers send")
        return Sealed(_decoded(raw.removeprefix(_DATA)))

    def _nonce(self, raw: bytes) -> Nonce:
        value = _decoded(raw.removeprefix(_NONCE)) if raw.startswith(_NONCE) else b""
        if len(value) != SELLER_NONCE_BYTES:
            raise Garbled("its first event is no nonce")
        self._has_nonce = True
        return Nonce(value)


def _decoded(text: bytes) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error:
        raise Garbled("an event's data is no base64") from None

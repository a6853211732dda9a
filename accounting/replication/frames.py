"""Encode what gateways send to the leader: a frame of many events, answered by a frame with one answer for each.

A frame is its length in four bytes, then that many bytes of msgpack. The two ends take turns: request, answer.
"""

import inspect
import socket
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from accounting import errors
from accounting.errors import DatabaseFailing, LedgerError, PostingInvalid
from accounting.ledger.postings import Posted, Posting
from accounting.replication.errors import FrameInvalid

FRAME_BYTES_MAX = 32 * 2**20
"""The largest frame. The largest allowed event fits alone; real events are many times smaller."""
FRAME_BYTES = 4 * 2**20
"""A frame that has reached this size takes no further event."""
EVENTS_MAX = 1_024

_LENGTH_BYTES = 4

Reply: TypeAlias = Posted | LedgerError


class EncodedError(msgspec.Struct, frozen=True, tag="refused"):
    """An error: its class name, message and fields. A list stands for a set of names."""

    error: str
    message: str
    fields: dict[str, str | int | list[str] | None]


class EncodedPosted(msgspec.Struct, frozen=True, tag="booked"):
    """`Posted` in its encoded form."""

    event_seq: int
    transfer_seqs: tuple[int, ...]
    replayed: bool


_ERRORS = {
    name: kind for name, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, LedgerError)
}
_encode = msgspec.msgpack.Encoder().encode
_events = msgspec.msgpack.Decoder(list[msgspec.Raw])
_event = msgspec.msgpack.Decoder(Posting)
_answers = msgspec.msgpack.Decoder(list[EncodedPosted | EncodedError])


def pack_events(postings: Sequence[Posting]) -> list[bytes]:
    """Return frames with all events in their order. Each frame respects the limits."""
    frames, some, size = [], list[msgspec.Raw](), 0
    for posting in postings:
        packed = msgspec.Raw(_encode(posting))
        if some and (size + len(packed) > FRAME_BYTES or len(some) == EVENTS_MAX):
            frames.append(_frame(some))
            some, size = [], 0
        some.append(packed)
        size += len(packed)
    return [*frames, _frame(some)] if some else frames


def unpack_events(content: bytes) -> list[Posting | LedgerError]:
    """Return every event, or the error that answers an unreadable one. Raises FrameInvalid."""
    try:
        return [_unpacked_event(event) for event in _events.decode(content)]
    except msgspec.DecodeError as error:
        raise FrameInvalid(f"invalid events: {error}") from None


def _unpacked_event(event: msgspec.Raw) -> Posting | LedgerError:
    """Decode one event, so that an unreadable one does not fail the others in its frame."""
    try:
        return _event.decode(event)
    except msgspec.DecodeError as error:
        return PostingInvalid(f"the leader of the ledger cannot read this event: {error}")
    except LedgerError as error:
        return error


def pack_answers(answers: Sequence[Reply]) -> bytes:
    return _frame([_packed(answer) for answer in answers])


def unpack_answers(content: bytes) -> list[Reply]:
    """Return the answers of a frame. Raises FrameInvalid."""
    try:
        return [_unpacked(answer) for answer in _answers.decode(content)]
    except msgspec.DecodeError as error:
        raise FrameInvalid(f"invalid answers: {error}") from None


def read_frame(link: socket.socket) -> bytes:
    """Return the next frame's content, or b"" if the other end has closed the link properly.

    Raises:
        FrameInvalid: the frame is too long, or ends before its stated length.
        OSError: the link is lost, or silent for longer than its timeout.
    """
    head = _read(link, _LENGTH_BYTES)
    if not head:
        return b""
    length = int.from_bytes(head, "big")
    if not 0 < length <= FRAME_BYTES_MAX:
        raise FrameInvalid(f"a frame has at most {FRAME_BYTES_MAX} bytes, not {length}")
    content = _read(link, length)
    if not content:
        raise FrameInvalid("the link was closed inside a frame")
    return content


def _read(link: socket.socket, length: int) -> bytes:
    """Return exactly `length` bytes, or b"" if the link ends before the first of them."""
    content = bytearray()
    while len(content) < length:
        some = link.recv(min(length - len(content), 2**16))
        if not some:
            if content:
                raise FrameInvalid("the link was closed inside a frame")
            return b""
        content += some
    return bytes(content)


def _frame(content: Any) -> bytes:
    packed = _encode(content)
    return len(packed).to_bytes(_LENGTH_BYTES, "big") + packed


def _packed(answer: Reply) -> EncodedPosted | EncodedError:
    if isinstance(answer, Posted):
        return EncodedPosted(answer.event_seq, answer.transfer_seqs, answer.replayed)
    fields = {
        name: sorted(value) if isinstance(value, frozenset) else value for name, value in vars(answer).items()
    }
    return EncodedError(_known_name(type(answer)), str(answer), fields)


def _known_name(kind: type[LedgerError]) -> str:
    """Return the nearest class in the list of the ledger's errors, which both ends know."""
    return next(each.__name__ for each in kind.__mro__ if _ERRORS.get(each.__name__) is each)


def _unpacked(answer: EncodedPosted | EncodedError) -> Reply:
    if isinstance(answer, EncodedPosted):
        return Posted(answer.event_seq, answer.transfer_seqs, answer.replayed)
    kind = _ERRORS.get(answer.error, DatabaseFailing)
    # Constructors would build the message from the fields; here both arrive complete.
    error = kind.__new__(kind, answer.message)
    error.args = (answer.message,)
    for name, value in answer.fields.items():
        setattr(error, name, frozenset(value) if isinstance(value, list) else value)
    return error

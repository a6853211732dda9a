"""Encode what gateways send to the leader, in msgpack: a message of many events, and one with an answer for each."""

import inspect
from collections.abc import Sequence
from typing import TypeAlias, TypeVar

import msgspec

from accounting import errors
from accounting.errors import DatabaseFailing, LedgerError, PostingInvalid
from accounting.ledger.postings import Posted, Posting
from accounting.replication.errors import MessageInvalid

PROTOCOL = 1
"""The version of these messages. Change it if events or answers change."""
MESSAGE_BYTES = 4 * 2**20
"""A message that has reached this size takes no further event. A single event may be larger."""

Reply: TypeAlias = Posted | LedgerError

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that it cannot decode: the last two for invalid UTF-8 and for deep nesting."""

T = TypeVar("T")


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
_message = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])
_events = msgspec.msgpack.Decoder(list[msgspec.Raw])
_event = msgspec.msgpack.Decoder(Posting)
_answers = msgspec.msgpack.Decoder(list[EncodedPosted | EncodedError])


def pack_events(postings: Sequence[Posting]) -> list[bytes]:
    """Return messages with all events in their order."""
    messages, some, size = [], list[msgspec.Raw](), 0
    for posting in postings:
        packed = msgspec.Raw(_encode(posting))
        if some and size + len(packed) > MESSAGE_BYTES:
            messages.append(_encode((PROTOCOL, some)))
            some, size = [], 0
        some.append(packed)
        size += len(packed)
    return [*messages, _encode((PROTOCOL, some))] if some else messages


def unpack_events(message: bytes) -> list[Posting | LedgerError]:
    """Return every event, or the error that answers an unreadable one. Raises MessageInvalid."""
    return [_unpacked_event(event) for event in _unpacked(message, _events)]


def _unpacked_event(event: msgspec.Raw) -> Posting | LedgerError:
    """Decode one event, so that an unreadable one does not fail the others in its message."""
    try:
        return _event.decode(event)
    except _UNREADABLE as error:
        return PostingInvalid(f"the leader of the ledger cannot read this event: {error}")
    except LedgerError as error:
        return error


def pack_answers(answers: Sequence[Reply]) -> bytes:
    """Return a message with an answer to each event of a message, in order."""
    return _encode((PROTOCOL, [_packed(answer) for answer in answers]))


def unpack_answers(message: bytes) -> list[Reply]:
    """Return the answers of a message. Raises MessageInvalid."""
    return [_unpacked_answer(answer) for answer in _unpacked(message, _answers)]


def _unpacked(message: bytes, decoder: "msgspec.msgpack.Decoder[list[T]]") -> list[T]:
    try:
        protocol, content = _message.decode(message)
        if protocol == PROTOCOL:
            return decoder.decode(content)
    except _UNREADABLE as error:
        raise MessageInvalid(f"invalid message: {error}") from None
    raise MessageInvalid(
        f"version {protocol} of messages, not {PROTOCOL}: gateways that share a ledger need one version"
    )


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


def _unpacked_answer(answer: EncodedPosted | EncodedError) -> Reply:
    if isinstance(answer, EncodedPosted):
        return Posted(answer.event_seq, answer.transfer_seqs, answer.replayed)
    kind = _ERRORS.get(answer.error, DatabaseFailing)
    # Constructors would build the message from the fields; here both arrive complete.
    error = kind.__new__(kind, answer.message)
    error.args = (answer.message,)
    for name, value in answer.fields.items():
        setattr(error, name, frozenset(value) if isinstance(value, list) else value)
    return error

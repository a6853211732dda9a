"""Tracks the part of a resumable stream that a caller has: chunks are forwarded when their tokens are known.

Records (gateway.lanes.resume_records) precede their chunks and are not forwarded. A chunk with a record is
forwarded when all of that record's chunks have arrived. So the caller's text and the noted tokens always agree.
"""

from array import array
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.dialects.openai import HAD_TOKENS_MAX, Had
from gateway.lanes.base import Out
from gateway.lanes.body import Sink
from gateway.lanes.resume_records import ResumeRecord, read_record
from runtime.sse import DONE, EVENT_BYTES_MAX

# Fields that are equal in all parts of an answer.
_SAME = ("id", "created", "model", "system_fingerprint")
_DATA = b"data:"
# Far more than the tokens of one step need.
_CHUNKS_MAX = 1000


class PartUseless(Exception):
    """The current part cannot be used, so its body must stop."""


@dataclass(slots=True)
class _Choice:
    """The part of one choice that the caller has."""

    token_ids: "array[int]" = field(default_factory=lambda: array("I"))
    characters: int = 0
    text_offset: int = 0
    is_finished: bool = False

    def take(self, record: ResumeRecord) -> None:
        self.token_ids.extend(record.token_ids)
        self.characters += record.characters
        self.text_offset = record.text_offset
        self.is_finished = record.finished


class ResumableStream(Sink):
    """One stream from parts of several backends. Each part except the first begins with `join`."""

    def __init__(self, out: Out, choices: int, *, passes_records: bool = False) -> None:
        super().__init__(out)
        self._passes_records = passes_records
        self._choices = [_Choice() for _ in range(choices)]
        self._head: dict[str, Any] = {}
        self._is_joined = False
        self._begin()

    def _begin(self) -> None:
        self.failure = ""
        """This part's error message."""
        self._tells: bool | None = None
        self._record: ResumeRecord | None = None
        self._group: list[bytes] = []
        self._last: list[bytes] = []
        self._held_bytes = 0
        """The size of `_group` and `_last` together."""
        self._is_done = False

    def join(self) -> None:
        """Begin the next part, from another backend. Drop incomplete data of the last part."""
        self._begin()
        self._is_joined = True

    @property
    def tokens(self) -> int:
        return sum(len(choice.token_ids) for choice in self._choices)

    @property
    def is_known(self) -> bool:
        """Whether `tokens` are everything that the caller has. Joined parts only forward recorded chunks."""
        return self._is_joined or bool(self._tells)

    @property
    def can_go_on(self) -> bool:
        """Whether every forwarded chunk has a record, and the answer is incomplete."""
        return self._tells is not False and not self._is_done and self.tokens <= HAD_TOKENS_MAX

    def is_delivered(self, *, with_usage: bool) -> bool:
        """Whether the caller has everything except possibly the end, which needs no backend."""
        has_usage = not with_usage or any(b'"usage"' in event for event in self._last)
        return self._is_done or (has_usage and all(choice.is_finished for choice in self._choices))

    @property
    def is_done(self) -> bool:
        """Whether the end was sent."""
        return self._is_done

    @property
    def had(self) -> list[Had]:
        return [
            Had(token_ids=one.token_ids.tolist(), characters=one.characters, text_offset=one.text_offset)
            for one in self._choices
        ]

    def write(self, data: bytes) -> None:
        """Take whole events, as lanes' bodies write them."""
        passed = b"".join(self._take(part + b"\n\n") for part in data.split(b"\n\n") if part)
        if passed:
            self._out.write(passed)

    def end(self) -> None:
        """Note the part's regular end, with or without [DONE]; send the held-back data."""
        if self._record:
            self._fail("ended before the chunks of its last record")
        elif self._last and not self.failure:
            self._out.write(b"".join(self._last))
            self._last = []

    def finish(self) -> None:
        """Send the end if the last part did not reach it."""
        if not self._is_done:
            self._out.write(b"".join(self._last) + b"data: %b\n\n" % DONE)
        self.failure, self._is_done = "", True

    def note(self, text: str) -> None:
        """Send a comment, which clients of event streams ignore."""
        self._out.write(b": %b\n\n" % text.encode())

    @property
    def is_full(self) -> bool:
        return bool(self.failure) or super().is_full

    async def drain(self) -> None:
        """Wait for room. Raises PartUseless if the part cannot be used."""
        if self.failure:
            raise PartUseless
        await super().drain()

    def _take(self, event: bytes) -> bytes:
        """Return the part of the event and of the waiting chunks to forward now."""
        if self.failure or self._is_done:
            return b""
        if record := read_record(event):
            return self._take_record(record, event)
        if not event.startswith(_DATA):
            return event  # a comment
        return self._take_data(event)

    def _take_data(self, event: bytes) -> bytes:
        if self._tells is False:
            return event
        if b'"error"' in event and (problem := _problem_of(event)):
            return self._fail(problem)
        if self._tells:
            return self._take_last(event) if self._record is None else self._take_chunk(event, self._record)
        if self._is_joined:
            return self._fail("does not state its position")
        self._tells = False
        return event

    def _take_record(self, record: ResumeRecord, event: bytes) -> bytes:
        if self._tells is False:  # too late: the tokens of earlier chunks are unknown
            return event if self._passes_records else b""
        self._tells = True
        if problem := self._problem_with(record):
            return self._fail(problem)
        self._record = record
        if self._passes_records:
            self._hold(self._group, event)
        return b"" if record.chunks else self._commit(record)

    def _problem_with(self, record: ResumeRecord) -> str:
        if self._record or record.choice >= len(self._choices):
            return "tells of tokens out of order"
        if record.chunks > _CHUNKS_MAX:
            return f"tells of more than {_CHUNKS_MAX} chunks at once"
        tokens = len(self._choices[record.choice].token_ids) + len(record.token_ids)
        return f"tells of more than {HAD_TOKENS_MAX} tokens" if tokens > HAD_TOKENS_MAX else ""

    def _take_chunk(self, event: bytes, record: ResumeRecord) -> bytes:
        if _is_end(event):
            return self._fail("ended before the chunks of its last record")
        if not self._hold(self._group, self._as_one(event)):
            return b""
        whole = record.chunks + self._passes_records
        return self._commit(record) if len(self._group) == whole else b""

    def _hold(self, held: list[bytes], event: bytes) -> bool:
        """Hold the chunk back; False if too much is held."""
        held.append(event)
        self._held_bytes += len(event)
        if self._held_bytes > EVENT_BYTES_MAX:
            self._fail(f"tells more than {EVENT_BYTES_MAX} bytes that cannot be forwarded yet")
        return not self.failure

    def _fail(self, problem: str) -> bytes:
        """Forward nothing more of the part."""
        self.failure = problem
        self._record, self._group, self._last, self._held_bytes = None, [], [], 0
        return b""

    def _commit(self, record: ResumeRecord) -> bytes:
        group, self._record, self._group = b"".join(self._group), None, []
        self._held_bytes -= len(group)
        choice = self._choices[record.choice]
        if choice.is_finished:  # and sent again by the next backend
            return b""
        choice.take(record)
        return group

    def _take_last(self, event: bytes) -> bytes:
        """Hold back usage and the end until the end, so that neither is sent twice."""
        if not self._hold(self._last, self._as_one(event)) or not _is_end(event):
            return b""
        last, self._last, self._is_done = b"".join(self._last), [], True
        return last

    def _as_one(self, event: bytes) -> bytes:
        """Return the event as a part of the joined answer."""
        if self._head and not self._is_joined:
            return event
        fields = _as_object(event)
        if fields is None:
            return event
        if not self._head:
            self._head = {name: fields[name] for name in _SAME if name in fields}
            return event
        return b"data: %b\n\n" % orjson.dumps(fields | self._head)


def _is_end(event: bytes) -> bool:
    return event[len(_DATA) :].strip() == DONE


def _problem_of(event: bytes) -> str:
    error = (_as_object(event) or {}).get("error")
    if not error:
        return ""
    message = error.get("message") if isinstance(error, dict) else error
    return str(message)[:300] or "was interrupted"


def _as_object(event: bytes) -> dict[str, Any] | None:
    try:
        fields = orjson.loads(event[len(_DATA) :])
    except orjson.JSONDecodeError:
        return None
    return fields if isinstance(fields, dict) else None

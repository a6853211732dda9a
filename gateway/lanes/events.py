"""Reads a passing answer with as little parsing as possible: whether it is complete, and its usage.

Nearly every event of a stream has only text. Such events are passed on after a few searches for the relevant
fields, and are parsed only if the backend did not count them.
"""

import json
from collections.abc import Callable
from typing import Any, Protocol

import orjson

from accounting.metering.counts import counts_of
from gateway.lanes.base import Call, Meter
from gateway.lanes.tee import KEPT_BYTES_MAX, Kept, data_of
from gateway.lanes.transcript import Transcript, generated, read_leniently
from runtime.errors import LaneFailed
from runtime.redaction import error_without_internals
from runtime.sse import DONE, EVENT_BYTES_MAX

HEAD = ("id", "object", "created", "model", "system_fingerprint")
"""Fields that all events of a stream have in common."""
_CHOICES_MAX = 10_000
_REASON_CHARS = 64
_REASONS_MAX = 128
_END = b"\n\n"
# An empty line, as servers end their lines; each may come in two pieces.
_ENDS = (_END, b"\n\r\n", b"\r\r")
_USAGE = b'"usage"'
_NO_USAGE = (b'"usage":null', b'"usage": null')


class Reader(Protocol):
    """Inspects an answer's bytes as they pass."""

    def feed(self, chunk: bytes) -> bytes:
        """Take the next bytes; return the bytes for the caller. Raises LaneFailed if this is not an answer."""

    def end(self) -> bytes:
        """Note that the upstream closed its answer; return the bytes held back so far."""

    @property
    def refusal(self) -> Any:
        """The backend's error message, if it sent one in place of an answer."""

    @property
    def is_whole(self) -> bool:
        """Whether the answer is complete, or states itself why not."""

    def fill(self, meter: Meter) -> None:
        """Note that the answer has ended or was cut, and record its usage."""


class StreamReader:
    """Passes a stream on in whole events, without the usage event unless the caller asked for one.

    An unfinished event is not passed on. A whole stream ends with [DONE]. Line ends of CR or CRLF become LF.

    A backend's own token count is used if it is valid. Without it every event with text counts as about one
    token; with `is_paid` the text that was sent to the caller is charged. If the caller asked for usage,
    this gateway's count replaces an invalid one, and in a paid stream also a missing one.
    """

    # Initial values as class attributes, because every stream creates an instance.
    refusal: Any = None
    _error: Any = None
    _is_odd = False
    """Whether an implausible usage was reported."""
    _has_passed = False
    _is_done = False
    _has_ended = False
    _room_bytes = KEPT_BYTES_MAX

    def __init__(self, call: Call, *, is_paid: bool = False) -> None:
        request = call.generation
        self._call = call
        self._is_paid = is_paid
        self._passes_usage = request.wants_usage
        # Several choices end one by one, so every event is inspected.
        self._reads_all = (request.n or 1) > 1 or not isinstance(getattr(request, "prompt", ""), str)
        self._held = bytearray()
        # Text to be counted if the backend does not. Paid text is counted where it is sent.
        self._kept: Kept | Transcript | None = None
        if not is_paid or self._passes_usage:
            self._kept = kept = Transcript() if is_paid else Kept()
            self._keep: Callable[[bytes], None] = kept.add
        self._head: dict[str, Any] = {}
        self._usage = Meter()
        self._unfinished: set[int] = set()
        self._finishes: dict[int, str] = {}

    def feed(self, chunk: bytes) -> bytes:
        if self._held or not chunk.endswith(_END):
            chunk = self._whole_events(chunk)
            if not chunk:
                return chunk
        # Inlined, because it runs for every event of every stream.
        if self._kept:
            self._keep(chunk)
            self._room_bytes -= len(chunk)
            if self._room_bytes < 0:
                self._make_room()
        if (
            (_USAGE in chunk and _has_usage(chunk))
            or b"[DONE]" in chunk
            or b'"error"' in chunk
            or b'"finish_reason":"' in chunk
            or b'"finish_reason": "' in chunk
            or self._reads_all
        ):
            passed = self._read(chunk)
            if self._error and not self._has_passed:
                self.refusal = self._first_error(chunk)
            self._has_passed = True
            return passed
        self._has_passed = True
        return chunk

    def _make_room(self) -> None:
        if isinstance(self._kept, Kept):
            self._kept.count()
        self._room_bytes = KEPT_BYTES_MAX

    def end(self) -> bytes:
        """Accept a last event without its empty line; drop an event that was cut off."""
        last, self._held = _closed(bytes(self._held)), bytearray()
        passed = self.feed(last) if last else b""
        self._has_ended = True
        if self._is_complete and not self._is_done:
            self._is_done = True
            passed += self._own_usage() + b"data: %b\n\n" % DONE
        return passed

    @property
    def is_whole(self) -> bool:
        return self._is_complete or bool(self._error)

    @property
    def _is_complete(self) -> bool:
        # Some servers omit [DONE]: a stream is also complete if every choice has finished.
        is_finished = self._has_ended and bool(self._finishes) and not self._unfinished
        return (self._is_done or is_finished) and not self._error

    def fill(self, meter: Meter) -> None:
        meter.is_complete = self._is_complete
        meter.finish_reasons = tuple(reason for _, reason in sorted(self._finishes.items()))
        if self._is_complete or not self._is_paid:
            self._count()
        is_known = self._usage.source == "characters" or (self._usage.source == "upstream" and not self._is_odd)
        if is_known or not self._is_paid:
            meter.take(self._usage)

    def _own_usage(self) -> bytes:
        """Return an event with this gateway's count, before the end, if the caller did not get the backend's."""
        if not self._passes_usage or self._error or not (self._is_paid or self._is_odd):
            return b""
        self._count()
        if self._usage.source == "upstream":
            return b""
        return b"data: %b\n\n" % orjson.dumps(self._head | {"choices": [], "usage": self._usage.as_usage()})

    def _count(self) -> None:
        """Count the forwarded text if the backend reported no count, or none for existing text."""
        kept, usage = self._kept, self._usage
        if kept is None or (usage.completion_tokens and not self._is_odd):
            return
        counted = Meter(prompt_tokens=self._call.prompt_tokens)
        if isinstance(kept, Kept):
            counted.completion_tokens = kept.tokens()
        else:
            counted.count_text(generated(kept.by_index(), self._call.request))
        if counted.completion_tokens or self._is_odd or usage.source != "upstream":
            self._usage = counted

    def _whole_events(self, chunk: bytes) -> bytes:
        """Return the complete events of the held and new bytes; hold the rest."""
        held = self._held
        if not held and chunk.endswith(_ENDS):
            return _with_plain_lines(chunk)
        begin = max(0, len(held) - len(_ENDS[1]))
        held += chunk
        cut = max(at + len(end) if (at := held.rfind(end, begin)) >= 0 else 0 for end in _ENDS)
        if len(held) - cut > EVENT_BYTES_MAX:
            raise LaneFailed(f"sent an event longer than {EVENT_BYTES_MAX} bytes")
        whole = bytes(held[:cut])
        del held[:cut]
        return _with_plain_lines(whole)

    def _read(self, chunk: bytes) -> bytes:
        """Inspect each event; return the chunk without the parts that are not for the caller."""
        if DONE in chunk or (_USAGE in chunk and _has_usage(chunk)):
            chunk = b"".join(map(self._passed, events_of(chunk)))
        else:
            for data in data_of(chunk):
                self._note(data)
        return b"".join(map(_without_internals, events_of(chunk))) if self._error else chunk

    def _passed(self, event: bytes) -> bytes:
        """Return the caller's part of an event. Also record its usage and end."""
        was_done = self._is_done
        parsed = [self._note(data) for data in data_of(event)]
        if self._is_done and not was_done:
            return self._own_usage() + event
        usages = [one["usage"] for one in parsed if one and one.get("usage") is not None]
        if not usages:
            return event
        is_odd = any(counts_of(usage) is None for usage in usages)
        self._is_odd |= is_odd
        if (is_odd or not self._passes_usage) and not any(one.get("choices") for one in parsed if one):
            return b""
        if not is_odd:
            return event
        rest = [{name: one[name] for name in one if name != "usage"} for one in parsed if one]
        return b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in rest)

    def _note(self, data: bytes) -> dict[str, Any] | None:
        if data == DONE:
            self._is_done = True
            return None
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            # Infinite and undefined numbers are invalid JSON, but some clients read them.
            event = read_leniently(data) if _USAGE in data else None
        if not isinstance(event, dict):
            return None
        self._error = self._error or event.get("error")
        self._head = self._head or {name: event[name] for name in HEAD if name in event}
        self._usage.read(event.get("usage"))
        choices = event.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            self._follow(choice)
        return event

    def _first_error(self, chunk: bytes) -> Any:
        """Return the error, if the stream's first event is one."""
        first = next(iter(data_of(chunk)), b"")
        try:
            content = orjson.loads(first)
        except orjson.JSONDecodeError:
            return None
        return content.get("error") if isinstance(content, dict) else None

    def _follow(self, choice: Any) -> None:
        index = choice.get("index", 0) if isinstance(choice, dict) else None
        if not isinstance(index, int):
            return
        if reason := choice.get("finish_reason"):
            self._unfinished.discard(index)
            if len(self._finishes) < _REASONS_MAX:
                self._finishes[index] = str(reason)[:_REASON_CHARS]
        elif len(self._unfinished) < _CHOICES_MAX and self._reads_all:
            self._unfinished.add(index)


def events_of(chunk: bytes) -> list[bytes]:
    """Split the chunk into its events, each with its empty line."""
    *events, rest = chunk.split(_END)
    return [*(event + _END for event in events), rest]


def _without_internals(event: bytes) -> bytes:
    """Return an error event without details of the operator's machine."""
    data = next(iter(data_of(event)), b"")
    cleaned = error_without_internals(data) if b'"error"' in data else data
    return event if cleaned == data else b"data: %b\n\n" % cleaned


def _has_usage(chunk: bytes) -> bool:
    """Return whether the event has a usage other than null."""
    return chunk.count(_USAGE) > sum(map(chunk.count, _NO_USAGE))


def _with_plain_lines(events: bytes) -> bytes:
    """Return events with LF line ends: JSON has no line breaks of its own."""
    return events.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in events else events


def _closed(event: bytes) -> bytes:
    """Return the stream's last event with its empty line; nothing if it was cut off."""
    event = _with_plain_lines(event).strip(b"\n") + _END
    return event if any(map(_is_readable, data_of(event))) else b""


def _is_readable(data: bytes) -> bool:
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return data == DONE
    return True

"""Reads an answer that is one JSON object."""

from typing import Any

import msgspec
import orjson

from gateway.dialects.openai import GENERATES
from gateway.lanes.base import Call, Meter
from gateway.lanes.transcript import Transcript, generated

ANSWER_BYTES_MAX = 64 * 2**20

_NULL_BYTES = b"null"
_NULL = msgspec.Raw(_NULL_BYTES)
_BRACKET = ord("[")


class _Parts(msgspec.Struct, frozen=True):
    """The examined parts of a whole answer as JSON; the rest is skipped without creating objects."""

    error: msgspec.Raw = _NULL
    choices: msgspec.Raw = _NULL
    data: msgspec.Raw = _NULL
    usage: msgspec.Raw = _NULL


_decoder = msgspec.json.Decoder(_Parts)
_top_level = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NOTHING = _Parts()


class WholeReader:
    """Keeps an answer's bytes up to a bound, to read them when all have arrived."""

    # Initial values as class attributes, because nearly every request creates an instance.
    rewritten: bytes | None = None
    """The whole answer with this gateway's count, if it replaces the backend's."""
    is_json = False
    """Whether a part of it can be distinguished from the whole."""
    _size_bytes = 0
    _parts = _NOTHING
    _has_choices = False
    _has_ended = False
    _has_answer = False

    def __init__(self, call: Call, status: int, *, is_paid: bool = False) -> None:
        self.status = status
        self._is_paid = is_paid
        self._usage = Meter()
        self._call = call
        self._chunks: list[bytes] = []

    def feed(self, chunk: bytes) -> bytes:
        if self._size_bytes < ANSWER_BYTES_MAX:
            self._chunks.append(chunk)
            self._size_bytes += len(chunk)
        return chunk

    def end(self) -> bytes:
        """Note the end; the connection has checked the answer's length."""
        self._has_ended = True
        chunks = self._chunks
        content = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._parts = parts = _parts_of(content)
        self._has_choices = _is_list(parts.choices)
        if self._is_of_its_kind():
            self._has_answer = True
            self._count(content)
        return b""

    @property
    def is_whole(self) -> bool:
        return self._has_ended and (self.status != 200 or self._has_answer or bool(self.refusal))

    @property
    def refusal(self) -> Any:
        """Return an error body under status 200, which some backends send."""
        return None if self._has_choices else _value(self._parts.error)

    def fill(self, meter: Meter) -> None:
        meter.is_complete = self._has_answer
        if self._has_answer:
            meter.take(self._usage)

    def _count(self, content: bytes) -> None:
        """Take the backend's count; if it is missing or implausible, count the text."""
        call, usage = self._call, self._usage
        is_counted = usage.read(_value(self._parts.usage))
        if self._has_choices and not usage.completion_tokens:
            transcript = Transcript()
            transcript.add(content)
            counted = Meter()
            counted.count_text(generated(transcript.by_index(), call.request))
            if counted.completion_tokens or not is_counted:
                self._usage, is_counted = counted, False
        if is_counted:
            return
        self._usage.prompt_tokens = call.prompt_tokens
        # A free answer without usage passes byte for byte.
        has_usage = bytes(self._parts.usage) != _NULL_BYTES
        if (self._has_choices or _is_list(self._parts.data)) and (has_usage or self._is_paid):
            self.rewritten = _with_usage(content, self._usage)

    def _is_of_its_kind(self) -> bool:
        """Return whether it has the fields of its kind of answer.

        An answer too long to keep is assumed to have them.
        """
        if self._size_bytes >= ANSWER_BYTES_MAX:
            return True
        if self._call.kind in GENERATES:
            return self._has_choices
        if self._call.kind == "embedding":
            return _is_list(self._parts.data)
        return self._parts is not _NOTHING or not self.is_json


def _parts_of(content: bytes) -> _Parts:
    """Return the parsed answer; an empty one if it is not a JSON object."""
    try:
        return _decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _NOTHING


def _with_usage(content: bytes, usage: Meter) -> bytes:
    """Return the answer with these counts instead of the backend's; every other byte stays."""
    fields = _top_level.decode(content)
    return msgspec.json.encode(fields | {"usage": usage.as_usage()})


def _value(raw: msgspec.Raw) -> Any:
    """Parse one value; None if it is invalid, because the fast decoder did not check every byte."""
    try:
        return orjson.loads(bytes(raw))
    except orjson.JSONDecodeError:
        return None


def _is_list(raw: msgspec.Raw) -> bool:
    return memoryview(raw)[0] == _BRACKET

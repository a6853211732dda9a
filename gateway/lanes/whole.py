"""Reading an answer that comes as one JSON object."""

from typing import Any

import msgspec
import orjson

from gateway.lanes.base import Call, Meter
from gateway.lanes.tokens import cost_of, read_usage
from gateway.lanes.transcript import Transcript
from gateway.openai import GENERATES

ANSWER_BYTES_MAX = 64 * 2**20

_NULL = msgspec.Raw(b"null")
_BRACKET = ord("[")


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int = 0


class _CompletionDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _CompletionDetails | None = None
    cost_nano: str | None = None

    @property
    def reasoning_tokens(self) -> int:
        return self.completion_tokens_details.reasoning_tokens if self.completion_tokens_details else 0

    @property
    def cached_tokens(self) -> int:
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else 0


class _Parts(msgspec.Struct, frozen=True, kw_only=True):
    """Of a whole answer, what is looked at, as JSON; the rest is skipped without becoming objects."""

    error: msgspec.Raw = _NULL
    choices: msgspec.Raw = _NULL
    data: msgspec.Raw = _NULL


class _Usual(_Parts, frozen=True, kw_only=True):
    """What used is said as it should be."""

    usage: _Usage | None = None


class _Unusual(_Parts, frozen=True, kw_only=True):
    usage: msgspec.Raw = _NULL


_usual = msgspec.json.Decoder(_Usual)
_unusual = msgspec.json.Decoder(_Unusual)
_NOTHING = _Usual()


class WholeReader:
    """Keeps an answer's bytes to read them when they are all there, up to a bound."""

    def __init__(self, call: Call, status: int) -> None:
        self.status = status
        self.is_json = False
        """Whether a part of it can be told from the whole."""
        self._call = call
        self._chunks: list[bytes] = []
        self._size_bytes = 0
        self._parts: _Usual | _Unusual = _NOTHING
        self._has_choices = False
        self._has_ended = False

    def feed(self, chunk: bytes) -> bytes:
        if self._size_bytes < ANSWER_BYTES_MAX:
            self._chunks.append(chunk)
            self._size_bytes += len(chunk)
        return chunk

    def end(self) -> bytes:
        """Its length was seen to by the connection."""
        self._has_ended = True
        chunks = self._chunks
        self._parts = _parts_of(chunks[0] if len(chunks) == 1 else b"".join(chunks))
        self._has_choices = _is_list(self._parts.choices)
        return b""

    @property
    def is_whole(self) -> bool:
        return self._has_ended and (self.status != 200 or self._has_answer or bool(self.refusal))

    @property
    def refusal(self) -> Any:
        """An error body under status 200, as some backends send it."""
        return None if self._has_choices else _value(self._parts.error)

    def fill(self, meter: Meter, call: Call) -> None:
        meter.is_complete = self._has_ended and self._has_answer
        if self._read_usage(meter) or not meter.is_complete:
            return
        meter.prompt_tokens = call.prompt_tokens
        if self._has_choices:
            said = Transcript()
            said.add(b"".join(self._chunks))
            meter.count_text(said.choices())

    def _read_usage(self, meter: Meter) -> bool:
        parts = self._parts
        if isinstance(parts, _Unusual):
            return read_usage({"usage": _value(parts.usage)}, meter)
        usage = parts.usage
        if usage:
            meter.count(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, usage.reasoning_tokens)
            meter.cost_nano = cost_of(usage.cost_nano)
        return usage is not None

    @property
    def _has_answer(self) -> bool:
        """Whether it has what its kind of answer is made of. What was too long to be kept is believed to."""
        if self._size_bytes >= ANSWER_BYTES_MAX:
            return True
        if self._call.kind in GENERATES:
            return self._has_choices
        if self._call.kind == "embedding":
            return _is_list(self._parts.data)
        return self._parts is not _NOTHING or not self.is_json


def _parts_of(content: bytes) -> _Usual | _Unusual:
    """Nothing of what is no JSON object."""
    try:
        return _usual.decode(content)
    except msgspec.ValidationError:
        pass
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _NOTHING
    try:
        return _unusual.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _NOTHING


def _value(raw: msgspec.Raw) -> Any:
    """None for what cannot be read: skipping over it did not look at every byte."""
    try:
        return orjson.loads(bytes(raw))
    except orjson.JSONDecodeError:
        return None


def _is_list(raw: msgspec.Raw) -> bool:
    return memoryview(raw)[0] == _BRACKET

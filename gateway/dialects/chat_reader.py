"""Reads an upstream's answer to a chat or a completion, streamed or whole, from bytes as they arrive."""

from collections.abc import Iterator
from typing import Any

import orjson

from gateway.dialects.pieces import CallPart, Piece, Usage
from gateway.dialects.refusals import upstream_error
from runtime.http.api_error import ApiError
from runtime.sse import DONE, EventSplitter

ANSWER_BYTES_MAX = 64 * 2**20
CALLS_MAX = 1024

TOO_DEEP = ApiError(
    502, "The backend answered with JSON nested too deep.", "upstream_error", code="upstream_failed"
)

_JSON_SPACE = b" \t\r\n"


class ChatReader:
    """Distinguishes by the first byte: a JSON object is a whole answer, anything else is a stream of events.

    It reads only the first of several choices. It skips events that are not JSON and values of the wrong type. The
    answer's end shows whether something was missing.
    """

    def __init__(self) -> None:
        self._events = EventSplitter()
        self._calls = _Calls()
        self._whole: bytearray | None = None
        self._has_begun = False
        self._has_finished = False

    def feed(self, chunk: bytes) -> list[Piece]:
        """Return the parts that are complete now."""
        if not self._has_begun and (begin := chunk.lstrip(_JSON_SPACE)):
            self._has_begun = True
            self._whole = bytearray() if begin.startswith(b"{") else None
        if self._whole is None:
            return [piece for data in self._events.feed(chunk) if (piece := self._event(data))]
        if len(self._whole) <= ANSWER_BYTES_MAX:
            self._whole += chunk
        return []

    def end(self) -> list[Piece]:
        """Return the unfinished parts at the upstream's end."""
        if self._whole is None:
            return [piece for data in self._events.end() if (piece := self._event(data))]
        piece = self._event(bytes(self._whole))
        return [piece] if piece else []

    def _event(self, data: bytes) -> Piece | None:
        if data == DONE:
            return None if self._has_finished else Piece(finish="stop")
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            return None
        if not isinstance(event, dict):
            return None
        if event.get("error"):
            return Piece(error=upstream_error(event["error"]))
        try:
            return self._piece(_first_choice(event), _usage(event.get("usage")))
        except RecursionError:
            return Piece(error=TOO_DEEP)

    def _piece(self, choice: dict[str, Any], usage: Usage | None) -> Piece:
        delta = _mapping(choice.get("delta") or choice.get("message"))
        finish = _text(choice.get("finish_reason")) or None
        self._has_finished = self._has_finished or finish is not None
        logprobs = _mapping(choice.get("logprobs")).get("content")
        return Piece(
            text=_text(delta.get("content")) or _text(choice.get("text")),
            reasoning=_text(delta.get("reasoning_content")) or _text(delta.get("reasoning")),
            refusal=_text(delta.get("refusal")),
            calls=tuple(self._calls.parts(delta)),
            logprobs=tuple(filter(_is_mapping, logprobs)) if isinstance(logprobs, list) else (),
            finish=finish,
            stop=_text(choice.get("stop_reason")) or None,
            usage=usage,
        )


class _Calls:
    """Numbers the calls of an answer. Some servers leave out indices, or give every call the same."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._numbers: dict[int, int] = {}

    def parts(self, delta: dict[str, Any]) -> Iterator[CallPart]:
        calls = delta.get("tool_calls")
        for at, call in enumerate(calls if isinstance(calls, list) else ()):
            if _is_mapping(call) and (part := self._part(call, at)):
                yield part
        if _is_mapping(delta.get("function_call")) and (
            part := self._part({"function": delta["function_call"]}, 0)
        ):
            yield part

    def _part(self, call: dict[str, Any], at: int) -> CallPart | None:
        function = _mapping(call.get("function"))
        index = call["index"] if isinstance(call.get("index"), int) else at
        call_id, name = _text(call.get("id")), _text(function.get("name"))
        number = self._numbers.get(index)
        if number is None or (call_id and name and call_id != self._ids[number]):
            if len(self._ids) == CALLS_MAX:
                return None
            number = self._numbers[index] = len(self._ids)
            self._ids.append(call_id or f"call_{number}")
        return CallPart(number, self._ids[number], name, _arguments(function.get("arguments")))


def _arguments(value: Any) -> str:
    """Return the arguments as text: some servers send the object itself.

    Raises RecursionError if it is too deep.
    """
    try:
        return orjson.dumps(value).decode() if _is_mapping(value) else _text(value)
    except orjson.JSONEncodeError:
        raise RecursionError from None


def _first_choice(event: dict[str, Any]) -> dict[str, Any]:
    choices = event.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if _is_mapping(choice) and choice.get("index") in (0, None):
            return _mapping(choice)
    return {}


def _usage(usage: Any) -> Usage | None:
    if not _is_mapping(usage):
        return None
    prompt, completion = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    cached = _count(_mapping(usage.get("prompt_tokens_details")).get("cached_tokens"))
    reasoning = _count(_mapping(usage.get("completion_tokens_details")).get("reasoning_tokens"))
    return Usage(prompt, min(cached, prompt), completion, min(reasoning, completion))


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**9 else 0

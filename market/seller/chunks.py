"""Rewrite our own gateway's chunks for buyers: only known fields, in pieces that can be sealed."""

from collections.abc import Iterator
from typing import Any

import msgspec

from market.protocol.channels.job import Kind
from market.protocol.sealing.stream import PIECE_BYTES_MAX

TEXT_CHARS_MAX = 8192
"""Longer texts are split: a character takes at most six bytes of JSON, and a piece has a size limit."""
_OBJECTS: dict[Kind, str] = {"chat": "chat.completion.chunk", "completion": "text_completion"}
_REASONS = frozenset(("stop", "length", "tool_calls", "content_filter", "function_call"))
_TEXTS = ("content", "reasoning_content", "refusal")


class ChunkBroken(Exception):
    """Our own gateway sent an invalid chunk."""


class UpstreamError(Exception):
    """Our own gateway ended its stream with an error; `code` is that error's code."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Chunks:
    """Rewrite the chunks of one answer. Buyers see this `id` and `model`, not the backend's own names."""

    def __init__(self, kind: Kind, answer_id: str, model: str, created_s: int) -> None:
        self._kind = kind
        self._head = {"id": answer_id, "object": _OBJECTS[kind], "created": created_s, "model": model}

    def read(self, data: bytes) -> list[dict[str, Any]]:
        """Return a chunk's content as chunks of our own; empty if it says nothing.

        Raises:
            ChunkBroken: the data is not a valid chunk.
            UpstreamError: the data is an error.
        """
        try:
            event = msgspec.json.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise ChunkBroken("not JSON") from None
        if not isinstance(event, dict):
            raise ChunkBroken("not an object")
        if error := event.get("error"):
            code = error.get("code") if isinstance(error, dict) else None
            raise UpstreamError(str(code or "")[:64])
        choices = event.get("choices")
        given = [each for each in choices if isinstance(each, dict)] if isinstance(choices, list) else []
        return [self._head | {"choices": [part]} for choice in given for part in self._choices(choice)]

    def _choices(self, choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
        index = choice.get("index", 0)
        if type(index) is not int or not 0 <= index < 128:
            raise ChunkBroken("a choice has no valid index")
        deltas = list(self._deltas(choice))
        reason = choice.get("finish_reason")
        finish = reason if isinstance(reason, str) and reason in _REASONS else ("stop" if reason else None)
        if not deltas and not finish:
            return
        deltas = deltas or [{"delta": {}} if self._kind == "chat" else {"text": ""}]
        for number, delta in enumerate(deltas):
            is_last = number == len(deltas) - 1
            yield {
                "index": index,
                **delta,
                **_logprobs(choice, is_last),
                "finish_reason": finish if is_last else None,
            }

    def _deltas(self, choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if self._kind == "completion":
            yield from ({"text": part} for part in _cut(choice.get("text")))
            return
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return
        # Some servers send their reasoning under this name.
        known = delta | ({"reasoning_content": delta["reasoning"]} if "reasoning" in delta else {})
        texts: list[dict[str, Any]] = [
            {"delta": {name: part}} for name in _TEXTS for part in _cut(known.get(name))
        ]
        texts += [{"delta": {"tool_calls": [call]}} for call in _calls(delta.get("tool_calls"))]
        # The older form: one call, without an index.
        older = _calls([{"function": delta.get("function_call")}])
        texts += [{"delta": {"function_call": call["function"]}} for call in older]
        if delta.get("role") == "assistant":
            texts = texts or [{"delta": {"content": ""}}]
            texts[0]["delta"] = {"role": "assistant", **texts[0]["delta"]}
        yield from texts


def encoded(chunk: dict[str, Any]) -> bytes:
    """Return a chunk encoded for a piece, without log probabilities if they alone make it too long.

    Raises ChunkBroken if it is too long even so.
    """
    data = msgspec.json.encode(chunk)
    if len(data) < PIECE_BYTES_MAX:
        return data
    choices = [{name: value for name, value in each.items() if name != "logprobs"} for each in chunk["choices"]]
    data = msgspec.json.encode(chunk | {"choices": choices})
    if len(data) >= PIECE_BYTES_MAX:
        raise ChunkBroken("longer than a piece")
    return data


def _cut(text: Any) -> Iterator[str]:
    if isinstance(text, str):
        # Lone surrogates cannot be written as JSON in UTF-8; all parties replace them alike before counting.
        whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        yield from (whole[at : at + TEXT_CHARS_MAX] for at in range(0, len(whole), TEXT_CHARS_MAX))


def _calls(calls: Any) -> Iterator[dict[str, Any]]:
    for admission, call in enumerate(calls if isinstance(calls, list) else []):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            continue
        index = call["index"] if type(call.get("index")) is int else admission
        name, call_id = function.get("name"), call.get("id")
        parts = list(_cut(function.get("arguments"))) or [""]
        for number, part in enumerate(parts):
            rewritten: dict[str, Any] = {"index": index, "function": {"arguments": part}}
            if number == 0 and isinstance(name, str):
                rewritten["function"]["name"] = name[:256]
            if number == 0 and isinstance(call_id, str):
                rewritten |= {"id": call_id[:128], "type": "function"}
            yield rewritten


def _logprobs(choice: dict[str, Any], is_last: bool) -> dict[str, Any]:
    found = choice.get("logprobs")
    return {"logprobs": found} if is_last and isinstance(found, dict) else {}

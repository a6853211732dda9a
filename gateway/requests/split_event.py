"""Cuts an event to the part that the hold still covers. Pure."""

from typing import Any

import msgspec
import orjson

from gateway.lanes.tee import data_of

_PARTED = ("content", "reasoning_content", "reasoning", "refusal")


def part_of(event: bytes, size_bytes: int) -> bytes | None:
    """Return the event with its text cut to `size_bytes` of UTF-8; None if it has no text that can be cut.

    Only the text of one choice is cut, in one field: half a tool call is of no use.
    """
    try:
        (data,) = data_of(event)
        fields = orjson.loads(data)
        (choice,) = fields["choices"]
        parted = _parted(choice, size_bytes)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    if parted is None:
        return None
    head = {name: value for name, value in fields.items() if name != "usage"}
    return b"data: %b\n\n" % msgspec.json.encode(head | {"choices": [parted]})


def _parted(choice: dict[str, Any], size_bytes: int) -> dict[str, Any] | None:
    ended = {"logprobs": None, "finish_reason": None}
    if isinstance(text := choice.get("text"), str):
        part = _start(text, size_bytes)
        return choice | {"text": part} | ended if part else None
    delta = choice["delta"]
    texts = [name for name in _PARTED if delta.get(name)]
    if len(texts) != 1 or delta.get("tool_calls") or delta.get("function_call"):
        return None
    part = _start(delta[texts[0]], size_bytes)
    return choice | {"delta": delta | {texts[0]: part}} | ended if part else None


def _start(text: str, size_bytes: int) -> str:
    return text.encode(errors="replace")[: max(0, size_bytes)].decode(errors="ignore")

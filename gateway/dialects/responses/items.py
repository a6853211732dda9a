"""Translates input items to the messages of a chat."""

from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from gateway.dialects.openai.reader import refusal
from gateway.dialects.responses.shapes import (
    CallItem,
    CustomCallItem,
    Item,
    MessageItem,
    OutputItem,
    Part,
    Tool,
    ToolsItem,
)
from gateway.dialects.responses.tools import Toolbox, ToolName, arguments_of
from gateway.errors import FeatureUnsupported
from runtime.errors import RequestInvalid

Json = dict[str, Any]
T = TypeVar("T")

# Reasoning items are dropped, because backends cannot use them.
_THOUGHT = "reasoning"
REFERENCE = "item_reference"
_TOOLS = "additional_tools"


def type_of(item: Item) -> str:
    """Return the type of an item; messages and references may omit it."""
    kind = item.get("type")
    if isinstance(kind, str):
        return kind
    return "message" if "role" in item else REFERENCE


def tools_within(items: list[Item]) -> Iterator[tuple[str, Tool]]:
    """Yield the tools that items add to the request's own, each with its position. Raises RequestInvalid."""
    for at, item in enumerate(items):
        if type_of(item) == _TOOLS:
            for number, tool in enumerate(convert(item, ToolsItem, f"input[{at}]").tools):
                yield f"input[{at}].tools[{number}]", tool


def messages_of(items: list[Item], tools: Toolbox, field: str = "input") -> list[Json]:
    """Translate items; calls have the names of the functions in `tools`.

    Raises RequestInvalid and FeatureUnsupported, which name the position.
    """
    messages: list[Json] = []
    for at, item in enumerate(items):
        _add(messages, item, tools, f"{field}[{at}]")
    return messages


def _add(messages: list[Json], item: Item, tools: Toolbox, field: str) -> None:
    kind = type_of(item)
    if kind == "message":
        message = convert(item, MessageItem, field)
        # Every template knows "system"; "developer" is OpenAI's newer word for it.
        role = "system" if message.role == "developer" else message.role
        messages.append({"role": role, "content": _content(message.content, f"{field}.content")})
    elif kind == "function_call":
        call = convert(item, CallItem, field)
        _call(messages, call.call_id, tools.function_name(ToolName(call.name, call.namespace)), call.arguments)
    elif kind == "custom_tool_call":
        custom = convert(item, CustomCallItem, field)
        name = tools.function_name(ToolName(custom.name, custom.namespace, is_custom=True))
        _call(messages, custom.call_id, name, arguments_of(custom.input))
    elif kind in ("function_call_output", "custom_tool_call_output"):
        messages += _results(convert(item, OutputItem, field), field)
    elif kind not in (_THOUGHT, REFERENCE, _TOOLS):
        text = f"{field}: items of type {kind[:80]} belong to tools that run at OpenAI, and cannot be used here"
        raise FeatureUnsupported(text, param=f"{field}.type")


def convert(item: Item, shape: type[T], field: str) -> T:
    """Raises RequestInvalid by the field."""
    try:
        return msgspec.convert(item, shape)
    except msgspec.ValidationError as error:
        raise refusal(error, field) from None


def _call(messages: list[Json], call_id: str, name: str, arguments: str) -> None:
    """Add to the last assistant message: text and calls of one turn are one message."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    function = {"name": name, "arguments": arguments}
    messages[-1].setdefault("tool_calls", []).append({"id": call_id, "type": "function", "function": function})


def _results(result: OutputItem, field: str) -> list[Json]:
    """Return a tool's result as messages: its own can only have text, so other results follow in the next."""
    content = _content(result.output, f"{field}.output")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    more = [part for part in parts if part["type"] != "text"]
    message = {"role": "tool", "tool_call_id": result.call_id, "content": text}
    return [message, {"role": "user", "content": more}] if more else [message]


def _content(content: str | list[Part], field: str) -> Any:
    """Return text alone as one string, which every backend's template supports."""
    if isinstance(content, str):
        return content
    parts = [_part(part, f"{field}[{at}]") for at, part in enumerate(content)]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _part(part: Part, field: str) -> Json:
    if part.type in ("input_text", "output_text", "text", "summary_text", "reasoning_text"):
        return {"type": "text", "text": _there(part.text, f"{field}.text")}
    if part.type == "refusal":
        return {"type": "text", "text": _there(part.refusal, f"{field}.refusal")}
    if part.file_id:
        text = f"{field}.file_id: files are not stored here; send the contents"
        raise FeatureUnsupported(text, param=f"{field}.file_id")
    if part.type == "input_image":
        url: Json = {"url": _there(part.image_url, f"{field}.image_url")}
        return {"type": "image_url", "image_url": url | ({"detail": part.detail} if part.detail else {})}
    if part.type == "input_file":
        data = _there(part.file_data or part.file_url, f"{field}.file_data")
        return {"type": "file", "file": {"filename": part.filename or "file", "file_data": data}}
    if part.type == "input_audio":
        return {"type": "input_audio", "input_audio": _there(part.input_audio, f"{field}.input_audio")}
    text = f"{field}.type: {part.type[:80]!r} is no part of a message"
    raise RequestInvalid(text, param=f"{field}.type", code="invalid_value")


def _there(value: T | None, field: str) -> T:
    if value is None:
        raise RequestInvalid(f"{field}: missing", param=field, code="missing_required_parameter")
    return value

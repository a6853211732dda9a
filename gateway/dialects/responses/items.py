"""Input items become the messages of a chat."""

from typing import Any, TypeVar

import msgspec

from gateway.dialects.responses.shapes import CallItem, Item, MessageItem, OutputItem, Part
from gateway.errors import FeatureUnsupported, RequestInvalid
from gateway.openai.reading import refusal

Json = dict[str, Any]
T = TypeVar("T")

# What the model thought is the model's; backends would not know what to do with it.
_THOUGHT = "reasoning"
REFERENCE = "item_reference"


def type_of(item: Item) -> str:
    """A message may leave out its type, and a reference as well."""
    kind = item.get("type")
    if isinstance(kind, str):
        return kind
    return "message" if "role" in item else REFERENCE


def messages_of(items: list[Item], field: str = "input") -> list[Json]:
    """Raises RequestInvalid and FeatureUnsupported by the item's place."""
    messages: list[Json] = []
    for at, item in enumerate(items):
        _add(messages, item, f"{field}[{at}]")
    return messages


def _add(messages: list[Json], item: Item, field: str) -> None:
    kind = type_of(item)
    if kind == "message":
        message = convert(item, MessageItem, field)
        # Every template knows "system"; "developer" is OpenAI's newer word for it.
        role = "system" if message.role == "developer" else message.role
        messages.append({"role": role, "content": _content(message.content, f"{field}.content")})
    elif kind == "function_call":
        call = convert(item, CallItem, field)
        function = {"name": call.name, "arguments": call.arguments}
        _calling(messages).append({"id": call.call_id, "type": "function", "function": function})
    elif kind == "function_call_output":
        messages += _results(convert(item, OutputItem, field), field)
    elif kind not in (_THOUGHT, REFERENCE):
        text = f"{field}: items of type {kind[:80]} belong to tools that run at OpenAI, and cannot be used here"
        raise FeatureUnsupported(text, param=f"{field}.type")


def convert(item: Item, shape: type[T], field: str) -> T:
    """Raises RequestInvalid by the field."""
    try:
        return msgspec.convert(item, shape)
    except msgspec.ValidationError as error:
        raise refusal(error, field) from None


def _calling(messages: list[Json]) -> list[Json]:
    """The calls of the assistant's message that stands last; what it says and calls in one turn is one message."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    calls: list[Json] = messages[-1].setdefault("tool_calls", [])
    return calls


def _results(result: OutputItem, field: str) -> list[Json]:
    """Only text fits into a tool's message: what else a tool has found is shown right behind it."""
    content = _content(result.output, f"{field}.output")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    more = [part for part in parts if part["type"] != "text"]
    message = {"role": "tool", "tool_call_id": result.call_id, "content": text}
    return [message, {"role": "user", "content": more}] if more else [message]


def _content(content: str | list[Part], field: str) -> Any:
    """Text alone as one string, which every backend's template knows."""
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
        text = f"{field}.file_id: files are not kept here; send the contents"
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

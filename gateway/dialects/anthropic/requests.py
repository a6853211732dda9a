"""Translates a Messages request to a chat request."""

from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.dialects.anthropic.blocks import (
    Base64Source,
    Block,
    CountRequest,
    Document,
    Image,
    MessagesRequest,
    RedactedThinking,
    SearchResult,
    Text,
    TextSource,
    Thinking,
    Tool,
    ToolChoice,
    ToolReference,
    ToolResult,
    ToolUse,
    Turn,
)
from gateway.dialects.base import Question
from gateway.dialects.openai import read_request
from gateway.dialects.openai.reader import decode
from gateway.errors import FeatureUnsupported
from runtime.errors import RequestInvalid

Json = dict[str, Any]

_messages = msgspec.json.Decoder(MessagesRequest)
_count = msgspec.json.Decoder(CountRequest)
_ASIDE = Text | Image | Document | SearchResult


def read_messages(raw: bytes) -> Question:
    """Translate POST /v1/messages for lanes. Raises RequestInvalid and FeatureUnsupported."""
    request = decode(_messages, raw)
    for name in ("mcp_servers", "container"):
        if getattr(request, name):
            raise FeatureUnsupported(f"{name}: not supported here; leave it out", param=name)
    chat = _chat(request) | _sampling(request)
    if response_format := _format(request):
        chat["response_format"] = response_format
    if request.stream:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    body = msgspec.json.encode(chat)
    return Question("chat", read_request("chat", body), body)


def read_count(raw: bytes) -> Question:
    """Translate POST /v1/messages/count_tokens: return the chat whose prompt is to be counted."""
    body = msgspec.json.encode(_chat(decode(_count, raw)))
    return Question("chat", read_request("chat", body), body)


def _chat(request: CountRequest) -> Json:
    messages = [message for at, turn in enumerate(request.messages) for message in _turn(turn, f"messages[{at}]")]
    if system := _plain(request.system or ""):
        messages.insert(0, {"role": "system", "content": system})
    chat: Json = {"model": request.model, "messages": messages or [{"role": "user", "content": ""}]}
    if request.tools:
        chat["tools"] = [_tool(tool, f"tools[{at}]") for at, tool in enumerate(request.tools)]
        chat |= _choice(request.tool_choice) if request.tool_choice else {}
    return chat


def _sampling(request: MessagesRequest) -> Json:
    fields: Json = {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "stop": request.stop_sequences or None,
        "user": request.metadata.user_id if request.metadata else None,
        "millrace": request.millrace,
        "provider": request.provider,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _format(request: MessagesRequest) -> Json | None:
    """Return the response format, given under the field's current or former name."""
    output_format = request.output_format
    if request.output_config and request.output_config.format is not None:
        output_format = request.output_config.format
    if output_format is None:
        return None
    schema = output_format.get("schema")
    if output_format.get("type") != "json_schema" or not isinstance(schema, dict):
        text = "output_config.format: an object of type json_schema with a schema is expected"
        raise RequestInvalid(text, param="output_config.format", code="invalid_value")
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def _tool(tool: Tool, field: str) -> Json:
    if tool.type not in (None, "custom"):
        text = f"{field}: {tool.type} runs at Anthropic; only tools of type custom can be called here"
        raise FeatureUnsupported(text, param=f"{field}.type")
    function: Json = {"name": tool.name, "parameters": tool.input_schema or {"type": "object", "properties": {}}}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": function}


def _choice(choice: ToolChoice) -> Json:
    chosen: Any = {"auto": "auto", "any": "required", "none": "none"}.get(choice.type)
    if choice.type == "tool":
        if not choice.name:
            raise RequestInvalid("tool_choice.name: missing", param="tool_choice.name")
        chosen = {"type": "function", "function": {"name": choice.name}}
    parallel = {"parallel_tool_calls": False} if choice.disable_parallel_tool_use else {}
    return {"tool_choice": chosen, **parallel}


def _turn(turn: Turn, field: str) -> Iterator[Json]:
    """Yield one message or several: tool results are separate messages and precede the text about them."""
    if isinstance(turn.content, str):
        yield {"role": turn.role, "content": turn.content}
    elif turn.role == "assistant":
        yield from _assistant(turn.content, field)
    else:
        yield from _user(turn.role, turn.content, field)


def _assistant(blocks: list[Block], field: str) -> Iterator[Json]:
    text = "".join(block.text for block in blocks if isinstance(block, Text))
    calls = [
        {
            "id": block.id,
            "type": "function",
            "function": {"name": block.name, "arguments": msgspec.json.encode(block.input).decode()},
        }
        for block in blocks
        if isinstance(block, ToolUse)
    ]
    for at, block in enumerate(blocks):
        if not isinstance(block, Text | ToolUse | Thinking | RedactedThinking):
            raise _misplaced(block, "assistant", f"{field}.content[{at}]")
    if text or calls:
        yield {"role": "assistant", "content": text or None} | ({"tool_calls": calls} if calls else {})


def _user(role: str, blocks: list[Block], field: str) -> Iterator[Json]:
    parts: list[Json] = []
    for at, block in enumerate(blocks):
        if isinstance(block, ToolResult):
            content = block.content if isinstance(block.content, list) else [Text(block.content)]
            text = _plain([one for one in content if not isinstance(one, Image)])
            yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": text}
            # A tool's message can only have text, so its pictures follow in the next message.
            parts += [_part(one) for one in content if isinstance(one, Image)]
        elif isinstance(block, _ASIDE):
            parts.append(_part(block))
        elif not isinstance(block, Thinking | RedactedThinking):
            raise _misplaced(block, role, f"{field}.content[{at}]")
    if parts:
        yield {"role": role, "content": _joined(parts)}


def _joined(parts: list[Json]) -> Any:
    """Return text alone as one string, which every backend's template supports."""
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _part(block: _ASIDE) -> Json:
    if isinstance(block, Image):
        source = block.source
        url = f"data:{source.media_type};base64,{source.data}" if isinstance(source, Base64Source) else source.url
        return {"type": "image_url", "image_url": {"url": url}}
    if isinstance(block, Document) and not isinstance(block.source, TextSource):
        source = block.source
        data = f"data:{source.media_type};base64,{source.data}" if isinstance(source, Base64Source) else source.url
        return {"type": "file", "file": {"filename": block.title or "document", "file_data": data}}
    return {"type": "text", "text": _plain([block])}


def _plain(content: str | list[Any]) -> str:
    """Return the blocks' text."""
    if isinstance(content, str):
        return content
    return "\n".join(_text_of(block) for block in content)


def _text_of(block: Any) -> str:
    if isinstance(block, SearchResult):
        return "\n".join([block.title, block.source, *(text.text for text in block.content)])
    if isinstance(block, Document):
        return block.source.data if isinstance(block.source, TextSource) else block.title or ""
    if isinstance(block, ToolReference):
        return f"The tool {block.tool_name} can be called now."
    return block.text if isinstance(block, Text) else ""


def _misplaced(block: Block, role: str, field: str) -> RequestInvalid:
    kind = type(block).__struct_config__.tag
    return RequestInvalid(
        f"{field}: a block of type {kind} is not allowed in a message of the {role}", param=field
    )

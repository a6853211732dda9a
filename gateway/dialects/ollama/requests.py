"""Translates Ollama's requests to chats, completions and embeddings."""

from typing import Any

import msgspec

from gateway.dialects.base import Question
from gateway.dialects.model_loading import LoadAction, Upkeep, UpkeepAsked
from gateway.dialects.ollama.shapes import (
    ChatBody,
    ChatMessage,
    CommonFields,
    EmbedBody,
    EmbeddingsBody,
    GenerateBody,
    GenerationFields,
    Options,
    ToolCall,
)
from gateway.dialects.openai import Kind, read_request
from gateway.dialects.openai.reader import decode
from runtime.errors import RequestInvalid

Json = dict[str, Any]

_chat = msgspec.json.Decoder(ChatBody)
_generate = msgspec.json.Decoder(GenerateBody)
_embed = msgspec.json.Decoder(EmbedBody)
_embeddings = msgspec.json.Decoder(EmbeddingsBody)

_NO_OPTIONS = Options()
# The first characters of common picture formats in base64.
_PICTURES = {"/9j/": "jpeg", "iVBOR": "png", "R0lGOD": "gif", "UklGR": "webp"}


def read_chat(raw: bytes) -> Question:
    """Translate POST /api/chat for lanes. Raises RequestInvalid, UpkeepAsked."""
    request = decode(_chat, raw)
    if not request.messages:
        raise _upkeep(request, "messages", {"message": {"role": "assistant", "content": ""}})
    fields: Json = {"messages": _messages(request.messages)}
    if request.tools:
        fields["tools"] = request.tools
    return _question("chat", request, fields | _chat_fields(request))


def read_generate(raw: bytes) -> Question:
    """Translate POST /api/generate to a chat of one message, or to a completion if the prompt is raw.

    Raises RequestInvalid, UpkeepAsked.
    """
    request = decode(_generate, raw)
    if not request.prompt and not request.images:
        raise _upkeep(request, "prompt", {"response": ""})
    if request.raw or request.suffix:
        suffix = {"suffix": request.suffix} if request.suffix else {}
        # Completions end after 16 tokens by default, Ollama's do not.
        return _question("completion", request, {"max_tokens": 4096, "prompt": request.prompt, **suffix})
    system = [ChatMessage("system", request.system)] if request.system else []
    messages = [*system, ChatMessage("user", request.prompt, request.images)]
    return _question("chat", request, {"messages": _messages(messages)} | _chat_fields(request))


def read_embed(raw: bytes) -> Question:
    request = decode(_embed, raw)
    dimensions = {"dimensions": request.dimensions} if request.dimensions else {}
    return _encoded("embedding", request, {"input": request.input, **dimensions})


def read_embeddings(raw: bytes) -> Question:
    """Return the question of an older embeddings request. Raises RequestInvalid if it has no prompt."""
    request = decode(_embeddings, raw)
    if not request.prompt:
        raise RequestInvalid("prompt: missing", param="prompt", code="missing_required_parameter")
    return _encoded("embedding", request, {"input": request.prompt})


def _upkeep(request: GenerationFields, field: str, nothing: Json) -> UpkeepAsked:
    """Return the upkeep for a request without a question, by which Ollama loads or unloads a model."""
    if not request.is_time:
        message = "keep_alive: no duration; give seconds as a number, or text with units such as 5m or 1h30m"
        raise RequestInvalid(message, param="keep_alive")
    body = _body(request, {"messages": [{"role": "user", "content": ""}]})
    action: LoadAction = "unload" if request.is_last else "load"
    return UpkeepAsked(Upkeep(action, request.model, body, nothing, request.keep_alive), field)


def _question(kind: Kind, request: GenerationFields, fields: Json) -> Question:
    stream = {"stream": True, "stream_options": {"include_usage": True}} if request.is_stream else {}
    options = _options(request.options or _NO_OPTIONS)
    return _encoded(kind, request, {**fields, **options, **stream})


def _encoded(kind: Kind, request: CommonFields, fields: Json) -> Question:
    body = _body(request, fields)
    return Question(kind, read_request(kind, body), body)


def _body(request: CommonFields, fields: Json) -> bytes:
    extras = {"millrace": request.millrace, "provider": request.provider}
    given = {name: value for name, value in extras.items() if value is not None}
    return msgspec.json.encode({"model": request.model, **fields, **given})


def _options(options: Options) -> Json:
    fields = msgspec.structs.asdict(options)
    fields["repetition_penalty"] = fields.pop("repeat_penalty")
    limit = fields.pop("num_predict")
    fields["max_tokens"] = limit if limit and limit > 0 else None
    return {name: value for name, value in fields.items() if value is not None}


def _chat_fields(request: GenerationFields) -> Json:
    fields: Json = {}
    if request.format == "json":
        fields["response_format"] = {"type": "json_object"}
    elif isinstance(request.format, dict):
        described = {"name": "answer", "schema": request.format, "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": described}
    if request.think is not None:
        fields |= _thinking(request.think)
    if request.logprobs:
        fields |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    return fields


def _thinking(think: bool | str) -> Json:
    """Return the fields that turn a model's thinking on: a template argument, or the effort."""
    if isinstance(think, str):
        return {"reasoning_effort": think}
    return {"chat_template_kwargs": {"enable_thinking": think}}


def _messages(messages: list[ChatMessage]) -> list[Json]:
    """Translate messages and give tool calls ids.

    Ollama's have none: results refer to calls by order or by the tool's name.
    """
    numbered = _Calls()
    return [_message(message, numbered) for message in messages]


def _message(message: ChatMessage, calls: "_Calls") -> Json:
    plain: Json = {"role": message.role, "content": message.content or ""}
    if message.role == "tool":
        plain["tool_call_id"] = message.tool_call_id or calls.answered(message.tool_name)
    if message.tool_calls:
        plain["tool_calls"] = [calls.call(call) for call in message.tool_calls]
    if message.images:
        text = [{"type": "text", "text": message.content}] if message.content else []
        plain["content"] = [*text, *map(_picture, message.images)]
    return plain


class _Calls:
    def __init__(self) -> None:
        self._open: list[tuple[str, str]] = []
        self._count = 0

    def call(self, call: ToolCall) -> Json:
        self._count += 1
        call_id = call.id or f"call_{self._count}"
        self._open.append((call_id, call.function.name))
        arguments = msgspec.json.encode(call.function.arguments).decode()
        return {
            "id": call_id,
            "type": "function",
            "function": {"name": call.function.name, "arguments": arguments},
        }

    def answered(self, tool_name: str | None) -> str:
        """Return the id of the oldest open call, of this tool if it is named."""
        for at, (call_id, name) in enumerate(self._open):
            if tool_name in (None, name):
                del self._open[at]
                return call_id
        return f"call_{self._count}"


def _picture(image: str) -> Json:
    kind = next((kind for begin, kind in _PICTURES.items() if image.startswith(begin)), "jpeg")
    url = image if image.startswith(("data:", "http:", "https:")) else f"data:image/{kind};base64,{image}"
    return {"type": "image_url", "image_url": {"url": url}}

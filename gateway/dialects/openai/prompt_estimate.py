"""Estimates a prompt's tokens without a tokenizer."""

from collections.abc import Iterator
from typing import Any

import msgspec

from accounting.metering.counts import estimate_tokens
from gateway.dialects.openai.generation import ChatRequest, Message
from gateway.dialects.openai.reader import Request
from gateway.dialects.openai.tasks import EmbeddingRequest, TaskRequest

# The typical price of a picture at the large providers, in tokens; its size in bytes says nothing about it.
_PICTURE_TOKENS = 1000
_MESSAGE_TOKENS = 4


def estimate_prompt(request: Request) -> int:
    """Estimate the prompt's tokens if no backend has reported them."""
    if isinstance(request, ChatRequest):
        tokens = sum(map(_message_tokens, request.messages))
        if request.tools or request.functions or request.response_format:
            tokens += sum(map(estimate_tokens, _descriptions(request)))
        return tokens
    if isinstance(request, TaskRequest) and not isinstance(request, EmbeddingRequest):
        return sum(map(estimate_tokens, request.texts))
    parts = request.input if isinstance(request, EmbeddingRequest) else request.prompt
    if isinstance(parts, str):
        return estimate_tokens(parts)
    return sum(estimate_tokens(part) if isinstance(part, str) else _ids(part) for part in parts)


def _message_tokens(message: Message) -> int:
    tokens = _MESSAGE_TOKENS
    content = message.content
    if isinstance(content, str):
        tokens += estimate_tokens(content)
    elif content:
        for part in content:
            tokens += _PICTURE_TOKENS if part.text is None else estimate_tokens(part.text)
    if message.tool_calls:
        tokens += estimate_tokens(_json(message.tool_calls))
    return tokens


def _descriptions(request: ChatRequest) -> Iterator[str]:
    for described in (request.tools, request.functions, request.response_format):
        if described:
            yield _json(described)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _ids(part: int | list[int]) -> int:
    return 1 if isinstance(part, int) else len(part)

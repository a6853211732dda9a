"""The maximum number of tokens of a paid request: prompt, choices and each choice's answer. Pure."""

from typing import Any

import msgspec

from accounting.metering.counts import tokens_max
from gateway.dialects.openai import ChatRequest, GenerationRequest, Request
from gateway.lanes.base import Call, Offer
from gateway.lanes.cloud.worker.schemas import SchemaTooLarge, expanded_bytes
from runtime.errors import RequestInvalid

# The assumed maximum of models that are in no list.
_OUTPUT_TOKENS = 4096
# OpenAI's completions stop after this number of tokens by default.
_COMPLETION_TOKENS = 16
_FORMAT_TOKENS = 16
_TOOLS_TOKENS = 1024
_TOOL_TOKENS = 64
# The maximum that a model of the price list bills for one inline picture: gpt-4o-mini, 2833 + 8 tiles of 5667.
_MEDIA_TOKENS = 2833 + 8 * 5667


def output_bound(request: GenerationRequest, offer: Offer) -> int:
    """Return the maximum number of tokens of each choice.

    The hold covers them, and the upstream gets this limit.
    """
    if request.tokens_limit is not None:
        return request.tokens_limit
    if not isinstance(request, ChatRequest):
        return _COMPLETION_TOKENS
    return (offer.price and offer.price.max_output_tokens) or _OUTPUT_TOKENS


def choices_of(request: GenerationRequest) -> int:
    """Return how many answers a provider generates and charges for, even if it does not return them all."""
    choices = request.n or 1
    if isinstance(request, ChatRequest):
        return choices
    return max(choices, request.best_of or 1) * _prompts(request.prompt)


def _prompts(prompt: str | list[str | int | list[int]]) -> int:
    """Return the number of prompts: one for each text or token list; a list of tokens is one prompt."""
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return 1
    return len(prompt)


def prompt_tokens_max(call: Call) -> int:
    """Return the maximum number of tokens that a provider may count in a prompt. Raises RequestInvalid."""
    # Every token of the prompt represents at least one byte of the body.
    text = call.raw.decode("utf-8", "replace")
    return tokens_max([text]) + _added_tokens(call) + tool_tokens_max(call.request)


def _added_tokens(call: Call) -> int:
    """Return the tokens that a provider adds: its chat format around each message, and pictures of any size."""
    if not isinstance(call.request, ChatRequest):
        return _FORMAT_TOKENS
    messages = call.request.messages
    parts = [part for message in messages if isinstance(message.content, list) for part in message.content]
    media = sum(part.type != "text" for part in parts)
    return _FORMAT_TOKENS * (len(messages) + len(parts)) + _MEDIA_TOKENS * media


def tool_tokens_max(request: Request) -> int:
    """Return the maximum number of tokens that tools and schemas may add to the request's own bytes.

    Raises RequestInvalid.

    Providers explain to the model how to call tools. If they need schemas without references, these are expanded.
    """
    if not isinstance(request, ChatRequest):
        return 0
    tools = [*(request.tools or ()), *(request.functions or ())]
    tokens = _TOOLS_TOKENS + _TOOL_TOKENS * len(tools) if tools else 0
    for name in ("tools", "functions", "response_format"):
        if described := getattr(request, name):
            try:
                tokens += max(0, expanded_bytes(described) - len(_json(described)))
            except SchemaTooLarge:
                text = f"{name}: the schemas are too large once their references are written out, or too deep"
                raise RequestInvalid(text, param=name, code="schema_too_large") from None
    return tokens


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()

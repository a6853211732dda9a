"""litellm's answers as OpenAI's JSON: the standard fields, the public model name, nothing of litellm's own."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from accounting.metering.counts import counts_of
from gateway.lanes.cloud.worker.requests import ChatRequest, Json, Request

_USAGE_DETAILS = {
    # cache_write_tokens is not OpenAI's, but Anthropic charges more for them than for others.
    "prompt_tokens_details": ("cached_tokens", "audio_tokens", "cache_write_tokens"),
    "completion_tokens_details": (
        "reasoning_tokens",
        "audio_tokens",
        "accepted_prediction_tokens",
        "rejected_prediction_tokens",
    ),
}
_MESSAGE_FIELDS = ("reasoning_content", "function_call", "tool_calls", "audio", "annotations", "refusal")


@dataclass
class WorkerAnswer:
    """Writes one answer, whole or in pieces, and remembers what a later piece needs."""

    request: Request
    usage: Json | None = None
    """The provider's own count: providers send it in the last chunk, in an extra one, or in every one."""
    _last: Any = None

    @property
    def _is_chat(self) -> bool:
        return isinstance(self.request, ChatRequest)

    def whole(self, response: Any) -> Json:
        choices = [self._whole_choice(choice) for choice in response.choices]
        self.usage = _usage(getattr(response, "usage", None))
        kind = "chat.completion" if self._is_chat else "text_completion"
        return {**self._head(response, kind), "choices": choices, "usage": self.usage}

    def piece(self, chunk: Any) -> Json | None:
        """One event of a stream, or None for a chunk without anything to read."""
        self._last = chunk
        counted = _usage(getattr(chunk, "usage", None))
        # A count before more text is not the answer's count.
        if counted or any(_says_something(choice) for choice in chunk.choices or ()):
            self.usage = counted
        choices = [piece for choice in chunk.choices or () if (piece := self._piece_choice(choice))]
        return self._event(choices, None) if choices else None

    def usage_piece(self, usage: Json) -> Json:
        """The last event of a stream whose client asked for usage."""
        return self._event([], usage)

    def _event(self, choices: list[Json], usage: Json | None) -> Json:
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        event = {**self._head(self._last, kind), "choices": choices}
        return {**event, "usage": usage} if self.request.wants_usage() else event

    def _head(self, response: Any, kind: str) -> Json:
        head = {
            "id": response.id,
            "object": kind,
            "created": response.created or int(time.time()),
            "model": self.request.model,
        }
        for name in ("system_fingerprint", "service_tier"):
            if isinstance(value := getattr(response, name, None), str):
                head[name] = value
        return head

    def _whole_choice(self, choice: Any) -> Json:
        body = {"index": choice.index, "finish_reason": choice.finish_reason, "logprobs": _logprobs(choice)}
        if not self._is_chat:
            return {**body, "text": _text_of(choice)}
        message = choice.message
        standard = {"role": "assistant", "content": message.content, "refusal": _refusal(message)}
        fields = _set_fields(message)
        for call in fields.get("tool_calls", ()):
            call.pop("index", None)
        return {**body, "message": {**standard, **fields}}

    def _piece_choice(self, choice: Any) -> Json | None:
        delta = _set_fields(choice.delta)
        for name in ("role", "content"):
            if (value := getattr(choice.delta, name, None)) is not None:
                delta[name] = value
        logprobs = _logprobs(choice)
        if not delta and logprobs is None and choice.finish_reason is None:
            return None
        text = delta.get("content") or ""
        body = {"index": choice.index, "finish_reason": choice.finish_reason, "logprobs": logprobs}
        return {**body, "delta": delta} if self._is_chat else {**body, "text": text}


def _usage(usage: Any) -> Json | None:
    """OpenAI's usage object, or None if the provider counted nothing (which litellm writes as zeros).

    A count that is not an integer in range is ignored.
    """
    if usage is None:
        return None
    details = {group: _plain_fields(getattr(usage, group, None), names) for group, names in _USAGE_DETAILS.items()}
    reported = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens, **details}
    counts = counts_of(reported)
    if counts is None or not (counts.prompt_tokens or counts.completion_tokens):
        return None
    body = {"prompt_tokens": counts.prompt_tokens, "completion_tokens": counts.completion_tokens}
    total = {"total_tokens": counts.prompt_tokens + counts.completion_tokens}
    return {**body, **total, **{group: fields for group, fields in details.items() if fields}}


def _set_fields(message: Any) -> Json:
    return _plain_fields(message, _MESSAGE_FIELDS)


def _plain_fields(source: Any, names: Iterable[str]) -> Json:
    """Return the named attributes that have a value, as plain JSON values."""
    fields: Json = {}
    for name in names:
        value = getattr(source, name, None)
        if value is not None:
            fields[name] = [_plain(item) for item in value] if isinstance(value, list) else _plain(value)
    return fields


def _plain(value: Any) -> Any:
    if not hasattr(value, "model_dump"):
        return value
    body = value.model_dump(exclude_none=True)
    body.pop("provider_specific_fields", None)
    return body


def _logprobs(choice: Any) -> Any:
    return _plain(getattr(choice, "logprobs", None))


def _refusal(message: Any) -> str | None:
    """Return a whole answer's refusal, which litellm stores under its own fields."""
    filed = getattr(message, "provider_specific_fields", None) or {}
    refusal = getattr(message, "refusal", None) or filed.get("refusal")
    return refusal if isinstance(refusal, str) else None


def _says_something(choice: Any) -> bool:
    """Return whether a piece of a choice has any generated content."""
    delta = getattr(choice, "delta", None)
    fields = ("content", *_MESSAGE_FIELDS)
    return any(getattr(delta, name, None) for name in fields) or bool(getattr(choice, "text", None))


def _text_of(choice: Any) -> str:
    message = getattr(choice, "message", None)
    return str((message.content if message is not None else choice.text) or "")

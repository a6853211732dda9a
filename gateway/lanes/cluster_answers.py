"""Tokens of our own pipeline in OpenAI's words: chunks of a stream, or one whole answer."""

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cluster.generation import Alternative, SampledToken, TokenEvent
from gateway.lanes.base import Call, Meter

DONE = b"data: [DONE]\n\n"


@dataclass(slots=True)
class _Choice:
    """What one choice has said so far; kept whole only when the caller does not stream."""

    text: str = ""
    tokens: list[SampledToken] = field(default_factory=list)
    finish: str | None = None
    begun: bool = False
    offset: int = 0


class AnswerWriter:
    """Writes one call's answer. `echoes` are the texts that each choice begins with (completions' `echo`)."""

    def __init__(self, call: Call, model: str, echoes: list[str]) -> None:
        self._request = request = call.generation
        self._is_chat = call.kind == "chat"
        self._wants_logprobs = request.alternatives >= 0
        n = request.n or 1
        self._choices = [_Choice(text=echo) for echo in echoes for _ in range(n)]
        prefix, kind = ("chatcmpl", "chat.completion") if self._is_chat else ("cmpl", "text_completion")
        self._head: dict[str, Any] = {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "object": kind + (".chunk" if self._is_chat and request.is_stream else ""),
            "created": int(time.time()),
            "model": model,
        }

    def token(self, index: int, event: TokenEvent) -> bytes:
        """Bytes to send now; empty when the caller does not stream."""
        choice = self._choices[index]
        choice.finish = event.finish
        if not self._request.is_stream:
            choice.text += event.text
            choice.tokens += event.tokens
            return b""
        text = event.text if choice.begun else choice.text + event.text
        opening = self._opening(index) if self._is_chat and not choice.begun else b""
        choice.begun = True
        return opening + self._delta(index, text, event)

    def end(self, used: Meter) -> bytes:
        """The stream's last bytes, or the whole answer."""
        usage = {
            "prompt_tokens": used.prompt_tokens,
            "completion_tokens": used.completion_tokens,
            "total_tokens": used.prompt_tokens + used.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": used.cached_tokens},
        }
        if not self._request.is_stream:
            choices = [self._whole(index, choice) for index, choice in enumerate(self._choices)]
            return msgspec.json.encode(self._head | {"choices": choices, "usage": usage})
        if self._request.wants_usage:
            return _event(self._head | {"choices": [], "usage": usage}) + DONE
        return DONE

    def _opening(self, index: int) -> bytes:
        return self._chunk({"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None})

    def _delta(self, index: int, text: str, event: TokenEvent) -> bytes:
        logprobs = self._logprobs(index, list(event.tokens)) if self._wants_logprobs else None
        choice: dict[str, Any] = {"index": index, "finish_reason": event.finish, "logprobs": logprobs}
        if not self._is_chat:
            return self._chunk(choice | {"text": text})
        # OpenAI's last chunk of a choice has an empty delta; clients look for it.
        if event.finish and text:
            begin = choice | {"delta": {"content": text}, "finish_reason": None}
            return self._chunk(begin) + self._chunk({"index": index, "delta": {}, "finish_reason": event.finish})
        return self._chunk(choice | {"delta": {"content": text} if text or not event.finish else {}})

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        more = {"usage": None} if self._request.wants_usage else {}
        return _event(self._head | {"choices": [choice]} | more)

    def _whole(self, index: int, choice: _Choice) -> dict[str, Any]:
        logprobs = self._logprobs(index, choice.tokens) if self._wants_logprobs else None
        whole: dict[str, Any] = {"index": index, "finish_reason": choice.finish, "logprobs": logprobs}
        if self._is_chat:
            return whole | {"message": {"role": "assistant", "content": choice.text, "refusal": None}}
        return whole | {"text": choice.text}

    def _logprobs(self, index: int, tokens: list[SampledToken]) -> dict[str, Any]:
        if self._is_chat:
            return {"content": [_chat_logprob(token) for token in tokens], "refusal": None}
        choice = self._choices[index]
        offsets = []
        for token in tokens:
            offsets.append(choice.offset)
            choice.offset += len(_text(token))
        return {
            "tokens": [_name(token) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{_name(other): other.logprob for other in token.top} for token in tokens],
            "text_offset": offsets,
        }


def _chat_logprob(token: SampledToken) -> dict[str, Any]:
    return _entry(token) | {"top_logprobs": [_entry(other) for other in token.top]}


def _entry(token: SampledToken | Alternative) -> dict[str, Any]:
    return {"token": _text(token), "logprob": token.logprob, "bytes": list(token.raw)}


def _text(token: SampledToken | Alternative) -> str:
    return token.raw.decode("utf-8", "replace")


def _name(token: SampledToken | Alternative) -> str:
    """A completion's tokens have no bytes beside them: a part of a character is written out as OpenAI does."""
    try:
        return token.raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.raw)


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(content) + b"\n\n"

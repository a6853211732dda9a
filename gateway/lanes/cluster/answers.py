"""Writes tokens of the cluster's pipeline in OpenAI's format: chunks of a stream, or one whole answer."""

import time
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from cluster.generation import Alternative, SampledToken, TokenEvent
from cluster.models.chat_format import ChatFormat
from cluster.models.tool_calls.parser_choice import listen
from cluster.models.tool_calls.speech import Content, Speech
from gateway.dialects.openai import Had
from gateway.lanes.base import Call, Meter
from gateway.lanes.cluster.choice import Choice
from gateway.lanes.cluster.tools import Tools
from gateway.lanes.resume_records import ResumeRecord, write_record

DONE = b"data: [DONE]\n\n"

_NO_TOOLS = Tools()


class AnswerWriter:
    """Writes one call's answer. `echoes` are the texts that each choice begins with (completions' `echo`).

    The part that the caller `had` of an answer begun elsewhere is not sent again. `tells_tokens` writes records.
    """

    def __init__(
        self,
        call: Call,
        model: str,
        echoes: list[str],
        form: ChatFormat,
        tools: Tools = _NO_TOOLS,
        *,
        had: Sequence[Had] = (),
        tells_tokens: bool = False,
    ) -> None:
        self._request = request = call.generation
        self._is_chat = call.kind == "chat"
        self._wants_logprobs = request.alternatives >= 0
        self._form, self._tools = form, tools
        n = request.n or 1
        self._echoes = [echo for echo in echoes for _ in range(n)]
        self._choices = [Choice(calls_max=tools.calls_max) for _ in self._echoes]
        for choice, known in zip(self._choices, had, strict=False):
            choice.take_up(known)
        self._tells_tokens = tells_tokens
        prefix, kind = ("chatcmpl", "chat.completion") if self._is_chat else ("cmpl", "text_completion")
        self._head: dict[str, Any] = {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "object": kind + (".chunk" if self._is_chat and request.is_stream else ""),
            "created": int(time.time()),
            "model": model,
        }

    def accept(self, *, is_thinking: bool) -> None:
        """Note that a prompt was read; the beginning of the answer is known from now on."""
        for choice in self._choices if self._is_chat else ():
            choice.listener = listen(self._form, self._tools.names, is_thinking=is_thinking)

    def token(self, index: int, event: TokenEvent) -> bytes:
        """Return the bytes to send now; empty if the caller does not stream."""
        choice = self._choices[index]
        new = choice.unknown(event.text)
        if not (new or event.token_ids or event.finish):
            return b""
        text = new if choice.begun else self._echoes[index] + new
        opening = b"" if choice.begun or not self._is_chat else self._opening(index)
        choice.begun = True
        speech = choice.hear(text, event.finish)
        choice.tell_apart(event.completion_tokens, speech)
        if not self._request.is_stream:
            choice.tokens += event.tokens
            return b""
        logprobs = self._logprobs(choice, list(event.tokens)) if self._wants_logprobs else None
        written = opening + self._chunks(index, speech, choice.finish, logprobs)
        return self._record(index, event, len(new), written) + written if self._tells_tokens else written

    def _record(self, index: int, event: TokenEvent, characters: int, written: bytes) -> bytes:
        """Return the record for the chunks that follow it."""
        return write_record(
            ResumeRecord(
                choice=index,
                token_ids=list(event.token_ids),
                characters=characters,
                chunks=written.count(b"\n\n"),
                text_offset=self._choices[index].offset,
                finished=event.finish is not None,
            )
        )

    def end(self, used: Meter) -> bytes:
        """Return the stream's last bytes, or the whole answer."""
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

    def tell_apart(self, used: Meter) -> None:
        """Add the token counts by type to the meter, as far as they are known."""
        used.reasoning_tokens = sum(choice.reasoning_tokens for choice in self._choices)
        used.tool_tokens = sum(choice.tool_tokens for choice in self._choices)

    @property
    def finish_reasons(self) -> tuple[str, ...]:
        """Return the finish reasons of the ended choices."""
        return tuple(choice.finish for choice in self._choices if choice.finish)

    def _opening(self, index: int) -> bytes:
        return self._chunk({"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None})

    def _chunks(
        self, index: int, speech: list[Speech], finish: str | None, logprobs: dict[str, Any] | None
    ) -> bytes:
        """Return one chunk for each part.

        OpenAI's last chunk of a chat has an empty delta; clients look for it.
        """
        base: dict[str, Any] = {"index": index, "finish_reason": None, "logprobs": logprobs}
        if not self._is_chat:
            text = "".join(part.text for part in speech if isinstance(part, Content))
            return self._chunk(base | {"text": text, "finish_reason": finish})
        deltas = [self._choices[index].delta(part) for part in speech]
        if not deltas and logprobs and logprobs["content"]:
            deltas = [{}]
        written = b""
        for delta in deltas:
            written += self._chunk(base | {"delta": delta})
            base["logprobs"] = None
        if finish:
            written += self._chunk({"index": index, "delta": {}, "finish_reason": finish})
        return written

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        more = {"usage": None} if self._request.wants_usage else {}
        return _event(self._head | {"choices": [choice]} | more)

    def _whole(self, index: int, choice: Choice) -> dict[str, Any]:
        logprobs = self._logprobs(choice, choice.tokens) if self._wants_logprobs else None
        whole: dict[str, Any] = {"index": index, "finish_reason": choice.finish, "logprobs": logprobs}
        return whole | ({"message": choice.message} if self._is_chat else {"text": choice.text})

    def _logprobs(self, choice: Choice, tokens: list[SampledToken]) -> dict[str, Any]:
        if self._is_chat:
            return chat_logprobs(tokens)
        logprobs, choice.offset = text_logprobs(tokens, choice.offset)
        return logprobs


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


def chat_logprobs(tokens: list[SampledToken]) -> dict[str, Any]:
    return {"content": [_chat_logprob(token) for token in tokens], "refusal": None}


def text_logprobs(tokens: list[SampledToken], offset: int) -> tuple[dict[str, Any], int]:
    """Return a completion's log-probabilities for tokens that start at this character, and the next offset."""
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(_text(token))
    logprobs = {
        "tokens": [_name(token) for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [{_name(other): other.logprob for other in token.top} for token in tokens],
        "text_offset": offsets,
    }
    return logprobs, offset


def _chat_logprob(token: SampledToken) -> dict[str, Any]:
    return _entry(token) | {"top_logprobs": [_entry(other) for other in token.top]}


def _entry(token: SampledToken | Alternative) -> dict[str, Any]:
    return {"token": _text(token), "logprob": token.logprob, "bytes": list(token.raw)}


def _text(token: SampledToken | Alternative) -> str:
    return token.raw.decode("utf-8", "replace")


def _name(token: SampledToken | Alternative) -> str:
    """Return a token's text. Completions have no bytes field, so partial characters are escaped as OpenAI does."""
    try:
        return token.raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.raw)

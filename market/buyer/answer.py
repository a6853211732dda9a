"""The answer for the gateway: OpenAI's stream or object, with our own token counts."""

import time
import uuid
from itertools import chain
from typing import Any

import orjson

from market.buyer.logprobs import joined as join_logprobs
from market.buyer.market_request import MarketRequest
from market.buyer.purchase import Bought
from runtime.workers.errors import Refusal
from runtime.workers.exchange import Exchange

Json = dict[str, Any]

_CUT = b"x-millrace-cut"
_PROMPT_TOKENS = b"x-millrace-prompt-tokens"


class AnswerWriter:
    """Write one answer, which may consist of several sellers' parts."""

    def __init__(self, request: MarketRequest, exchange: Exchange) -> None:
        self._request = request
        self._exchange = exchange
        self._id = ("chatcmpl-" if request.kind == "chat" else "cmpl-") + uuid.uuid4().hex
        self._created = int(time.time())
        self._begun: set[int] = set()
        self._whole: dict[int, _Whole] = {}

    @property
    def has_begun(self) -> bool:
        """Return whether the gateway has received any of the answer."""
        return self._exchange.streaming

    async def pass_on(self, chunks: list[list[Json]], prompt_tokens: int) -> None:
        """Send the choices of some chunks, or collect them if the client asked for one object."""
        choices = list(chain.from_iterable(chunks))
        if not self._request.is_stream:
            for choice in choices:
                self._whole.setdefault(choice["index"], _Whole()).add(choice)
            return
        if not self.has_begun:
            # Tell the gateway the prompt's token count, in case the client leaves before the usage arrives.
            self._exchange.headers = [(_PROMPT_TOKENS, str(prompt_tokens).encode())]
        if self._request.kind == "chat":
            for choice in choices:
                if choice["index"] not in self._begun:
                    self._begun.add(choice["index"])
                    choice["delta"] = {"role": "assistant", **choice["delta"]}
        await self._exchange.events([self._event(each, None) for each in chunks])

    async def finish(self, parts: list[Bought]) -> None:
        """End a complete answer."""
        if self._request.is_stream:
            await self._end(parts)
            await self._exchange.event(b"[DONE]")
            await self._exchange.end()
            return
        await self._answer(parts, {})

    async def _answer(self, parts: list[Bought], headers: dict[bytes, bytes]) -> None:
        is_chat = self._request.kind == "chat"
        # A choice may be empty if the answer broke off.
        wholes = [self._whole.get(index, _Whole()) for index in range(self._request.choices)]
        choices = [whole.choice(index, is_chat=is_chat) for index, whole in enumerate(wholes)]
        kind = "chat.completion" if is_chat else "text_completion"
        body = {**self._head(kind), "choices": choices, "usage": usage_of(parts)}
        await self._exchange.answer(200, orjson.dumps(body), headers)

    async def break_off(self, parts: list[Bought], refusal: Refusal) -> None:
        """End an answer that no seller continues: send what was delivered, then the reason."""
        if not self._request.is_stream:
            # The partial answer is charged, so deliver it, as if `max_tokens` had been reached.
            await self._answer(parts, {_CUT: b"1"})
            return
        if self.has_begun:
            await self._end(parts)
        await self._exchange.refuse(refusal)

    async def _end(self, parts: list[Bought]) -> None:
        if self._request.wants_usage:
            await self._exchange.event(self._event([], usage_of(parts)))

    def _event(self, choices: list[Json], usage: Json | None) -> bytes:
        kind = "chat.completion.chunk" if self._request.kind == "chat" else "text_completion"
        event = {**self._head(kind), "choices": choices}
        if self._request.wants_usage:
            event["usage"] = usage
        return orjson.dumps(event)

    def _head(self, kind: str) -> Json:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._request.model}


def usage_of(parts: list[Bought]) -> Json:
    """Return OpenAI's usage, summed over all parts; `cost_nano` is what we owe the sellers, in nano-USD."""
    prompt = sum(part.prompt_tokens for part in parts)
    completion = sum(part.completion_tokens for part in parts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(part.cached_tokens for part in parts)},
        "cost_nano": str(sum(part.amount_nano for part in parts)),
    }


class _Whole:
    """One choice, assembled from its chunks."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._calls: dict[int, Json] = {}
        self._function: Json | None = None
        self._finish: str | None = None
        self._logprobs: Json | None = None

    def add(self, choice: Json) -> None:
        self._finish = choice["finish_reason"] or self._finish
        if choice["logprobs"]:
            self._logprobs = join_logprobs(self._logprobs, choice["logprobs"])
        delta = choice.get("delta") or {"text": choice.get("text")}
        for name in ("text", "content", "refusal", "reasoning_content"):
            if text := delta.get(name):
                self._texts.setdefault(name, []).append(text)
        for call in delta.get("tool_calls", ()):
            self._add_call(call)
        if function := delta.get("function_call"):
            self._function = _joined(self._function, function)

    def _add_call(self, call: Json) -> None:
        known = self._calls.get(call["index"])
        if known is None:
            self._calls[call["index"]] = {name: call[name] for name in ("id", "type", "function")}
        else:
            known["function"] = _joined(known["function"], call["function"])

    def choice(self, index: int, *, is_chat: bool) -> Json:
        body: Json = {"index": index, "finish_reason": self._finish or "length", "logprobs": self._logprobs}
        if not is_chat:
            return {**body, "text": self._text("text") or ""}
        message: Json = {"role": "assistant", "content": self._text("content"), "refusal": self._text("refusal")}
        if thoughts := self._text("reasoning_content"):
            message["reasoning_content"] = thoughts
        if self._calls:
            message["tool_calls"] = [call for _, call in sorted(self._calls.items())]
        if self._function:
            message["function_call"] = self._function
        return {**body, "message": message}

    def _text(self, name: str) -> str | None:
        return "".join(self._texts[name]) if name in self._texts else None


def _joined(function: Json | None, more: Json) -> Json:
    known = function or {"name": "", "arguments": ""}
    return {
        "name": known["name"] or more.get("name", ""),
        "arguments": known["arguments"] + more.get("arguments", ""),
    }

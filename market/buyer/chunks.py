"""OpenAI stream chunks from an untrusted seller: known fields of known types pass, rebuilt by us; the rest is
dropped.

Every chunk is built from scratch. So the seller cannot pass its own ids, fields that a client may act on, or calls
of tools that the request lacks. Nothing can follow an end.
"""

from collections.abc import Collection
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from market.buyer.errors import Garbled
from market.buyer.logprobs import Logprobs, logprobs_of, tokens_of
from market.protocol.counting.answer import CALLS_MAX, CHOICES_MAX

Json = dict[str, Any]
FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]

_Index = Annotated[int, Meta(ge=0, lt=CALLS_MAX)]
_CallId = Annotated[str, Meta(max_length=128, pattern=r"^[A-Za-z0-9_.:-]*\Z")]


class _Function(Struct, frozen=True):
    name: Annotated[str, Meta(max_length=256)] | None = None
    arguments: str | None = None


class _Call(Struct, frozen=True):
    function: _Function | None = None
    index: _Index = 0
    id: _CallId | None = None
    type: Literal["function"] | None = None


class _Delta(Struct, frozen=True):
    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Annotated[list[_Call], Meta(max_length=CALLS_MAX)] | None = None
    function_call: _Function | None = None


class _ChunkChoice(Struct, frozen=True):
    index: Annotated[int, Meta(ge=0, lt=CHOICES_MAX)] = 0
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: FinishReason | None = None
    logprobs: Logprobs | None = None


class _Chunk(Struct, frozen=True):
    choices: Annotated[list[_ChunkChoice], Meta(max_length=CHOICES_MAX)] = []


_chunk = msgspec.json.Decoder(_Chunk)


class Chunks:
    """Read the chunks of one answer: `choices` of them, with calls of `tools` only.

    At most `logprob_tokens_max` tokens may have log probabilities: none if the caller did not ask for them.
    """

    def __init__(
        self, *, is_chat: bool, choices: int, tools: Collection[str], logprob_tokens_max: int = 0
    ) -> None:
        self._is_chat = is_chat
        self._choices = choices
        self._tools = frozenset(tools)
        self._calls: dict[tuple[int, int], str] = {}
        self._finished: set[int] = set()
        self._logprob_tokens_left = logprob_tokens_max
        self._has_logprobs = logprob_tokens_max > 0

    @property
    def has_finished(self) -> bool:
        """Return whether every choice has ended."""
        return len(self._finished) == self._choices

    def read(self, content: bytes) -> list[Json]:
        """Return the chunk's choices as our callers get them; empty if it says nothing.

        Raises:
            Garbled: the bytes are not a chunk, or the answer cannot contain it.
        """
        try:
            chunk = _chunk.decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise Garbled("a chunk is invalid") from None
        return [shown for choice in chunk.choices if (shown := self._choice(choice))]

    def _choice(self, choice: _ChunkChoice) -> Json | None:
        if choice.index >= self._choices:
            raise Garbled("a chunk has a choice that was not requested")
        texts: Json = self._delta(choice) if self._is_chat else _text(choice)
        logprobs = self._logprobs(choice)
        if not texts and logprobs is None and choice.finish_reason is None:
            return None
        if choice.index in self._finished:
            raise Garbled("a choice continues after its end")
        if choice.finish_reason is not None:
            self._check_end(choice)
            self._finished.add(choice.index)
        body: Json = {"delta": texts} if self._is_chat else {"text": "", **texts}
        return {"index": choice.index, **body, "logprobs": logprobs, "finish_reason": choice.finish_reason}

    def _logprobs(self, choice: _ChunkChoice) -> Json | None:
        if choice.logprobs is None or not self._has_logprobs:
            return None
        logprobs = logprobs_of(choice.logprobs, is_chat=self._is_chat)
        self._logprob_tokens_left -= tokens_of(logprobs or {})
        if self._logprob_tokens_left < 0:
            raise Garbled("it has log probabilities for too many tokens")
        return logprobs

    def _delta(self, choice: _ChunkChoice) -> Json:
        delta = choice.delta or _Delta()
        given = {
            "content": delta.content,
            "refusal": delta.refusal,
            "reasoning_content": delta.reasoning_content or delta.reasoning,
        }
        texts: Json = {name: text for name, text in given.items() if text}
        if calls := [call for each in delta.tool_calls or () if (call := self._call(choice.index, each))]:
            texts["tool_calls"] = calls
        if delta.function_call and (function := self._function(choice.index, -1, delta.function_call)):
            texts["function_call"] = function
        return texts

    def _call(self, choice: int, call: _Call) -> Json | None:
        is_new = (choice, call.index) not in self._calls
        function = self._function(choice, call.index, call.function or _Function())
        if not function:
            return None
        head: Json = {"id": call.id or f"call_{choice}_{call.index}", "type": "function"} if is_new else {}
        return {"index": call.index, **head, "function": function}

    def _function(self, choice: int, call: int, function: _Function) -> Json:
        known = self._calls.get((choice, call))
        arguments = {"arguments": function.arguments} if function.arguments else {}
        if known is not None:
            if function.name not in (None, "", known):
                raise Garbled("a call changes its name")
            return arguments
        if function.name not in self._tools:
            raise Garbled("it calls a tool that the request does not have")
        self._calls[choice, call] = function.name or ""
        return {"name": function.name, "arguments": function.arguments or ""}

    def _check_end(self, choice: _ChunkChoice) -> None:
        calls = {call for index, call in self._calls if index == choice.index}
        if choice.finish_reason == "tool_calls" and not any(call >= 0 for call in calls):
            raise Garbled("an answer ends with calls that it does not have")
        if choice.finish_reason == "function_call" and -1 not in calls:
            raise Garbled("an answer ends with calls that it does not have")


def _text(choice: _ChunkChoice) -> Json:
    return {"text": choice.text} if choice.text else {}

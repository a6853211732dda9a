"""Writes an answer in Ollama's format: one JSON object, or one on each line."""

import time
from abc import abstractmethod
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from gateway.dialects.base import Question
from gateway.dialects.chat_writer import ChatWriter
from gateway.dialects.ollama.errors import error_body, error_event
from gateway.dialects.openai.prompt_estimate import estimate_prompt
from gateway.dialects.pieces import Piece, Said, ToolCall, Usage
from runtime.http.api_error import ApiError

Json = dict[str, Any]


class _LineWriter(ChatWriter):
    """Sends tool calls complete at the end, because Ollama has their arguments as objects."""

    def __init__(self, question: Question, _: str, clock: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__(is_stream=question.request.is_stream)
        self.content_type = "application/x-ndjson" if self._is_stream else "application/json"
        self._question = question
        self._clock = clock
        self._began_ns = clock()
        self._first_ns: int | None = None
        self.keeps_calls = True

    def _take(self, piece: Piece) -> bytes:
        if self._first_ns is None:
            self._first_ns = self._clock()
        return super()._take(piece)

    def _events(self, piece: Piece) -> bytes:
        if not (piece.text or piece.reasoning or piece.refusal):
            return b""
        some = Said([piece.text], [piece.reasoning], [piece.refusal], logprobs=list(piece.logprobs))
        return self._line(some, is_done=False)

    def _last_events(self) -> bytes:
        calls = self._line(Said(calls=self.said.calls), is_done=False) if self.said.calls else b""
        self.keeps_calls = False
        return calls + self._line(Said(), is_done=True)

    def _whole(self) -> bytes:
        return self._line(self.said, is_done=True).rstrip()

    def _error_event(self, error: ApiError) -> bytes:
        return error_event(error)

    def _error_body(self, error: ApiError) -> bytes:
        return error_body(error)

    def _line(self, content: Said, *, is_done: bool) -> bytes:
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        line = {"model": self._question.request.model, "created_at": now, **self._answer(content)}
        if content.logprobs:
            line["logprobs"] = content.logprobs
        line["done"] = is_done
        return msgspec.json.encode(line | (self._figures() if is_done else {})) + b"\n"

    @abstractmethod
    def _answer(self, content: Said) -> Json:
        """Return the text, under the route's field names."""

    def _figures(self) -> Json:
        """Return the final counts and durations in nanoseconds. The generation starts with the first text."""
        usage = self.said.usage or Usage(prompt=estimate_prompt(self._question.request))
        now_ns = self._clock()
        first_ns = self._first_ns or now_ns
        return {
            "done_reason": "length" if self.said.finish == "length" else "stop",
            "total_duration": now_ns - self._began_ns,
            "load_duration": 0,
            "prompt_eval_count": usage.prompt,
            "prompt_eval_duration": first_ns - self._began_ns,
            "eval_count": usage.completion,
            "eval_duration": now_ns - first_ns,
        }


class ChatLineWriter(_LineWriter):
    """POST /api/chat."""

    def _answer(self, content: Said) -> Json:
        message: Json = {"role": "assistant", "content": content.text + content.refusal}
        if reasoning := content.reasoning:
            message["thinking"] = reasoning
        if content.calls:
            message["tool_calls"] = [_call(call, at) for at, call in enumerate(content.calls)]
        return {"message": message}


class GenerateLineWriter(_LineWriter):
    """POST /api/generate."""

    def _answer(self, content: Said) -> Json:
        return {"response": content.text + content.refusal} | (
            {"thinking": content.reasoning} if content.thoughts else {}
        )


def _call(call: ToolCall, index: int) -> Json:
    return {"id": call.id, "function": {"index": index, "name": call.name, "arguments": call.input}}

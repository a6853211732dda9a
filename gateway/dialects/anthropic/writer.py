"""Writes an answer as an Anthropic message, whole or as events."""

from typing import Any

import msgspec

from gateway.dialects.anthropic.errors import error_body, error_event
from gateway.dialects.base import Question
from gateway.dialects.chat_writer import MIXED_CALLS, ChatWriter
from gateway.dialects.openai.prompt_estimate import estimate_prompt
from gateway.dialects.pieces import CallPart, Piece, ToolCall, Usage
from runtime.http.api_error import ApiError

Json = dict[str, Any]

_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}


class MessageWriter(ChatWriter):
    """Writes blocks one after another: a piece of another kind closes the open block."""

    def __init__(self, question: Question, request_id: str) -> None:
        super().__init__(is_stream=question.request.is_stream)
        self.content_type = "text/event-stream" if self._is_stream else "application/json"
        self._question = question
        self._id = f"msg_{request_id.removeprefix('req_')}"
        self._has_begun = False
        self._open: str | None = None
        self._blocks = 0

    def _events(self, piece: Piece) -> bytes:
        events = [] if self._has_begun else [self._begin()]
        if piece.reasoning:
            events += self._delta("thinking", {"type": "thinking_delta", "thinking": piece.reasoning})
        if text := piece.text + piece.refusal:
            events += self._delta("text", {"type": "text_delta", "text": text})
        for part in piece.calls:
            if not self._is_over:
                events += self._call(part)
        return b"".join(events)

    def _last_events(self) -> bytes:
        events = [] if self._has_begun else [self._begin()]
        events += self._close()
        reason, stop = self._reason()
        delta = {"stop_reason": reason, "stop_sequence": stop}
        events.append(_event("message_delta", delta=delta, usage=self._usage()))
        return b"".join(events) + _event("message_stop")

    def _whole(self) -> bytes:
        reason, stop = self._reason()
        message = self._message(self._usage()) | {"content": self._content()}
        return msgspec.json.encode(message | {"stop_reason": reason, "stop_sequence": stop})

    def _error_event(self, error: ApiError) -> bytes:
        return error_event(error)

    def _error_body(self, error: ApiError) -> bytes:
        return error_body(error)

    def _begin(self) -> bytes:
        self._has_begun = True
        # The prompt's token count is known only at the end, but clients require a number here.
        usage = _counts(Usage(prompt=estimate_prompt(self._question.request)))
        return _event("message_start", message=self._message(usage)) + _event("ping")

    def _message(self, usage: Json) -> Json:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._question.request.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def _delta(self, kind: str, delta: Json) -> list[bytes]:
        if self._open == kind:
            return [_event("content_block_delta", index=self._blocks - 1, delta=delta)]
        empty: Json = {"type": "text", "text": ""}
        if kind == "thinking":
            empty = {"type": "thinking", "thinking": "", "signature": ""}
        return [*self._start(kind, empty), *self._delta(kind, delta)]

    def _call(self, part: CallPart) -> list[bytes]:
        name = f"call {part.number}"
        events = []
        if self._open != name:
            if not self._begins(part):
                return [self.fail(MIXED_CALLS)]
            block = {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}
            events += self._start(name, block)
        if part.arguments:
            delta = {"type": "input_json_delta", "partial_json": part.arguments}
            events.append(_event("content_block_delta", index=self._blocks - 1, delta=delta))
        return events

    def _start(self, kind: str, block: Json) -> list[bytes]:
        events = self._close()
        self._open = kind
        self._blocks += 1
        return [*events, _event("content_block_start", index=self._blocks - 1, content_block=block)]

    def _close(self) -> list[bytes]:
        if self._open is None:
            return []
        index = self._blocks - 1
        events = [_event("content_block_stop", index=index)]
        if self._open == "thinking":
            # The gateway signs nothing; clients that send thinking back require the field.
            signature = {"type": "signature_delta", "signature": ""}
            events.insert(0, _event("content_block_delta", index=index, delta=signature))
        self._open = None
        return events

    def _content(self) -> list[Json]:
        said = self.said
        content: list[Json] = []
        if said.reasoning:
            content.append({"type": "thinking", "thinking": said.reasoning, "signature": ""})
        if said.text or said.refusal:
            content.append({"type": "text", "text": said.text + said.refusal})
        return content + [_tool_use(call) for call in said.calls]

    def _reason(self) -> tuple[str, str | None]:
        said = self.said
        if said.refusal:
            return "refusal", None
        if said.calls and said.finish in ("stop", "tool_calls", "function_call"):
            return "tool_use", None
        if said.finish == "stop" and said.stop:
            return "stop_sequence", said.stop
        return _REASONS.get(said.finish or "", "end_turn"), None

    def _usage(self) -> Json:
        return _counts(self.said.usage or Usage(prompt=estimate_prompt(self._question.request)))


def _tool_use(call: ToolCall) -> Json:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": call.input}


def _counts(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    }


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode({"type": kind, **fields}))

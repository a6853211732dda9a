"""Writes an answer as a response, whole or as events, and stores it if requested."""

import time
from typing import Any

import msgspec

from gateway.dialects.base import Question
from gateway.dialects.chat_writer import MIXED_CALLS, ChatWriter
from gateway.dialects.pieces import CallPart, Piece
from gateway.dialects.responses.answer import begun, call_item, ended, failed, item_id, logprobs_of, response_id
from gateway.dialects.responses.requests import ResponsesQuestion
from gateway.dialects.responses.tools import input_of
from gateway.dialects.stored_responses.store import StoredResponse
from runtime.http.api_error import ApiError

Json = dict[str, Any]

_PARTS: dict[str, Json] = {
    "reasoning_text": {"type": "reasoning_text", "text": ""},
    "output_text": {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
    "refusal": {"type": "refusal", "refusal": ""},
}


class ResponseWriter(ChatWriter):
    """Writes output items one after another: a piece of another item closes the open one."""

    def __init__(self, question: Question, request_id: str) -> None:
        assert isinstance(question, ResponsesQuestion)
        super().__init__(is_stream=question.request.is_stream)
        self.content_type = "text/event-stream" if self._is_stream else "application/json"
        self._question = question
        self._request_id = request_id = request_id.removeprefix("req_")
        self._response = begun(question.asked, request_id, is_stored=question.keep is not None)
        self._output: list[Json] = []
        self._open: str | None = None
        self._words: list[str] = []
        self._sent = 0

    def _events(self, piece: Piece) -> bytes:
        events = [] if self._sent else self._begin()
        if piece.reasoning:
            events += self._say("reasoning_text", piece.reasoning)
        if piece.text:
            events += self._say("output_text", piece.text, logprobs_of(piece.logprobs))
        if piece.refusal:
            events += self._say("refusal", piece.refusal)
        for part in piece.calls:
            if not self._is_over:
                events += self._call(part)
        return b"".join(events)

    def _last_events(self) -> bytes:
        events = ([] if self._sent else self._begin()) + self._close()
        response = self._ended()
        return b"".join([*events, self._event(f"response.{response['status']}", response=response)])

    def _whole(self) -> bytes:
        said = self.said
        calls = tuple(CallPart(at, call.id, call.name, call.arguments) for at, call in enumerate(said.calls))
        everything = Piece(said.text, said.reasoning, said.refusal, calls, tuple(said.logprobs))
        self._events(everything)
        self._close()
        return msgspec.json.encode(self._ended())

    def _error_event(self, error: ApiError) -> bytes:
        events = [] if self._sent else self._begin()
        self._join_words()
        events.append(self._event("error", code=error.code, message=error.message, param=error.param))
        response = failed(self._response, error, self._output)
        return b"".join([*events, self._event("response.failed", response=response)])

    def _error_body(self, error: ApiError) -> bytes:
        return error.body()

    def _begin(self) -> list[bytes]:
        kinds = ("response.created", "response.in_progress")
        return [self._event(kind, response=self._response) for kind in kinds]

    def _say(self, kind: str, text: str, logprobs: list[Json] | None = None) -> list[bytes]:
        events = [] if self._open == kind else self._open_part(kind)
        self._words.append(text)
        more: Json = {}
        if kind == "output_text":
            self._output[-1]["content"][0]["logprobs"] += logprobs or []
            more = {"logprobs": logprobs or []}
        return [*events, self._part_event(f"response.{kind}.delta", delta=text, **more)]

    def _open_part(self, kind: str) -> list[bytes]:
        item: Json = {"type": "message", "status": "in_progress", "role": "assistant", "content": []}
        if kind == "reasoning_text":
            item = {"type": "reasoning", "status": "in_progress", "summary": [], "content": []}
        events = self._add_item("rs" if kind == "reasoning_text" else "msg", item, kind)
        empty = {name: value if isinstance(value, str) else list(value) for name, value in _PARTS[kind].items()}
        item["content"].append(empty)
        return [*events, self._part_event("response.content_part.added", part=empty)]

    def _call(self, part: CallPart) -> list[bytes]:
        name = f"call {part.number}"
        events = []
        if self._open != name:
            if not self._begins(part):
                return [self.fail(MIXED_CALLS)]
            tool = self._question.tools.known(part.name)
            events = self._add_item("ctc" if tool.is_custom else "fc", call_item(part.id, tool), name)
        if part.arguments:
            self._words.append(part.arguments)
            # A custom tool's input is inside its function's arguments, so it is sent when these are complete.
            if "arguments" in self._output[-1]:
                events.append(self._item_event("response.function_call_arguments.delta", delta=part.arguments))
        return events

    def _add_item(self, kind: str, item: Json, name: str) -> list[bytes]:
        events = self._close()
        self._open = name
        item["id"] = item_id(kind, self._request_id, len(self._output))
        self._output.append(item)
        added = self._event("response.output_item.added", output_index=len(self._output) - 1, item=item)
        return [*events, added]

    def _close(self) -> list[bytes]:
        if self._open is None:
            return []
        self._join_words()
        item, kind = self._output[-1], self._open
        self._open = None
        item["status"] = "completed"
        events = self._part_done(kind, item["content"][0]) if "content" in item else self._call_done(item)
        done = self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)
        return [*events, done]

    def _join_words(self) -> None:
        """Put the collected text into the open item."""
        if self._open is None:
            return
        words, self._words = "".join(self._words), []
        item = self._output[-1]
        if "arguments" in item:
            item["arguments"] += words
        elif "input" in item:
            item["input"] = input_of(words)
        else:
            item["content"][0]["refusal" if self._open == "refusal" else "text"] += words

    def _part_done(self, kind: str, part: Json) -> list[bytes]:
        fields = {name: part[name] for name in ("text", "refusal", "logprobs") if name in part}
        done = self._part_event(f"response.{kind}.done", **fields)
        return [done, self._part_event("response.content_part.done", part=part)]

    def _call_done(self, item: Json) -> list[bytes]:
        if "input" in item:
            kind = "response.custom_tool_call_input"
            delta = self._item_event(f"{kind}.delta", delta=item["input"])
            return [delta, self._item_event(f"{kind}.done", input=item["input"])]
        kind = "response.function_call_arguments.done"
        return [self._item_event(kind, name=item["name"], arguments=item["arguments"])]

    def _ended(self) -> Json:
        response = ended(self._response, self.said, self._output)
        if keep := self._question.keep:
            keep(self._stored(response))
        return response

    def _stored(self, response: Json) -> StoredResponse:
        items = [
            item | {"id": item.get("id") or item_id("msg", self._request_id, f"i{at}")}
            for at, item in enumerate(self._question.own_items)
        ]
        input_and_answer, answer = msgspec.json.encode(items), msgspec.json.encode(response)
        return StoredResponse(
            id=response_id(self._request_id),
            owner=self._question.owner,
            previous_id=self._question.asked.previous_response_id,
            privacy=self._question.privacy,
            created_ns=time.time_ns(),
            size_bytes=len(input_and_answer) + len(answer),
            input=input_and_answer.decode(),
            answer=answer.decode(),
        )

    def _part_event(self, kind: str, **fields: Any) -> bytes:
        return self._item_event(kind, content_index=0, **fields)

    def _item_event(self, kind: str, **fields: Any) -> bytes:
        place = {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}
        return self._event(kind, **place, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._sent, **fields}
        self._sent += 1
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(event))

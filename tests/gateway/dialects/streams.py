"""Upstream answers to chats, as the servers that we know write them."""

import json
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What a model said, to be written as a stream or whole."""

    texts: tuple[str, ...] = ("The ", "mill ", "turns.")
    thoughts: tuple[str, ...] = ()
    calls: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Names of tools, and the parts of their arguments."""
    finish: str = "stop"
    usage: Json = field(
        default_factory=lambda: {
            "prompt_tokens": 9,
            "completion_tokens": 5,
            "total_tokens": 14,
            "prompt_tokens_details": {"cached_tokens": 4},
        }
    )

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def events(self, *, has_done: bool = True) -> bytes:
        deltas: list[Json] = [{"role": "assistant", "content": ""}]
        deltas += [{"reasoning_content": thought} for thought in self.thoughts]
        deltas += [{"content": text} for text in self.texts]
        for at, (name, parts) in enumerate(self.calls):
            function: Json = {"name": name, "arguments": ""}
            deltas.append({"tool_calls": [{"index": at, "id": f"call_{at}", "function": function}]})
            deltas += [{"tool_calls": [{"index": at, "function": {"arguments": part}}]} for part in parts]
        chunks: list[Json] = [
            {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
        ]
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": self.finish}]})
        chunks.append({"choices": [], "usage": self.usage})
        return b"".join(map(event, chunks)) + (b"data: [DONE]\n\n" if has_done else b"")

    def whole(self) -> bytes:
        calls = [
            {"id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": "".join(parts)}}
            for at, (name, parts) in enumerate(self.calls)
        ]
        message = {"role": "assistant", "content": self.text or None, "tool_calls": calls or None}
        message["reasoning_content"] = "".join(self.thoughts) or None
        choice = {"index": 0, "message": message, "finish_reason": self.finish}
        return json.dumps({"object": "chat.completion", "choices": [choice], "usage": self.usage}).encode()


def event(content: Json) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def sse(written: bytes) -> list[tuple[str, Json]]:
    """Events with their names; each must be whole and its name that of its type."""
    assert written.endswith(b"\n\n")
    events = []
    for block in written.decode().removesuffix("\n\n").split("\n\n"):
        first, second = block.split("\n")
        content = json.loads(second.removeprefix("data: "))
        assert first == f"event: {content['type']}"
        events.append((content["type"], content))
    return events


def lines(written: bytes) -> list[Json]:
    assert written.endswith(b"\n")
    return [json.loads(line) for line in written.splitlines()]

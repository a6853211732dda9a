"""One choice of an answer while it is generated: its content, reasoning and tool calls."""

import uuid
from dataclasses import dataclass, field
from typing import Any

from cluster.generation import SampledToken
from cluster.models.tool_calls.speech import (
    CallArguments,
    CallBegun,
    Content,
    Speech,
    SpeechListener,
    Thought,
    merged,
)
from gateway.dialects.openai import Had


@dataclass(slots=True)
class SpokenCall:
    id: str
    name: str
    arguments: str = ""

    @property
    def whole(self) -> dict[str, Any]:
        """Return the call as in a whole message."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(slots=True)
class Choice:
    """The text and calls of one choice so far. Calls beyond `calls_max` are left out."""

    listener: SpeechListener | None = None
    calls_max: int | None = None
    text: str = ""
    thought: str = ""
    calls: list[SpokenCall] = field(default_factory=list)
    tokens: list[SampledToken] = field(default_factory=list)
    finish: str | None = None
    begun: bool = False
    offset: int = 0
    known: int = 0
    """The number of coming characters that the caller already has from another gateway."""
    told_apart: int = 0
    """The number of tokens that are already counted by type."""
    reasoning_tokens: int = 0
    tool_tokens: int = 0

    def take_up(self, had: Had) -> None:
        """Note the beginning that the caller already has: it is parsed again but not sent again."""
        self.begun, self.known, self.offset = bool(had.token_ids), had.characters, had.text_offset
        self.told_apart = len(had.token_ids)

    def unknown(self, text: str) -> str:
        """Return the part of this text that the caller does not have yet."""
        known = min(len(text), self.known)
        if known:
            self.known -= known
            self.hear(text[:known], None)
        return text[known:]

    def hear(self, text: str, finish: str | None) -> list[Speech]:
        """Take the next text and return its parts by type; `finish` is the finish reason if it is the last."""
        if self.listener is None:
            speech: list[Speech] = [Content(text)]
        else:
            speech = [*self.listener.feed(text), *(self.listener.end() if finish else ())]
        heard = [part for part in merged(speech) if self._is_wanted(part)]
        for part in heard:
            self._keep(part)
        if finish:
            self.finish = "tool_calls" if finish == "stop" and self.calls else finish
        return heard

    def tell_apart(self, completion_tokens: int, speech: list[Speech]) -> None:
        """Count the new tokens by the type of their first output. Tokens without output yet are counted later."""
        if not speech:
            return
        new, self.told_apart = completion_tokens - self.told_apart, completion_tokens
        if isinstance(speech[0], Thought):
            self.reasoning_tokens += new
        elif not isinstance(speech[0], Content):
            self.tool_tokens += new

    def delta(self, part: Speech) -> dict[str, Any]:
        """Return the choice's part of a stream chunk."""
        match part:
            case Content(text):
                return {"content": text}
            case Thought(text):
                return {"reasoning_content": text}
            case CallBegun(index):
                return {"tool_calls": [{"index": index, **self.calls[index].whole} | _nothing_yet(part.name)]}
            case CallArguments(index, text):
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}

    @property
    def message(self) -> dict[str, Any]:
        """Return the complete choice."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text, "refusal": None}
        if self.thought:
            message["reasoning_content"] = self.thought
        if self.calls:
            message["content"] = self.text or None
            message["tool_calls"] = [call.whole for call in self.calls]
        return message

    def _is_wanted(self, part: Speech) -> bool:
        if self.calls_max is None or isinstance(part, Content | Thought):
            return True
        return part.index < self.calls_max

    def _keep(self, part: Speech) -> None:
        match part:
            case Content(text):
                self.text += text
            case Thought(text):
                self.thought += text
            case CallBegun(_, name):
                self.calls.append(SpokenCall(f"call_{uuid.uuid4().hex[:24]}", name))
            case CallArguments(index, text):
                self.calls[index].arguments += text


def _nothing_yet(name: str) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": ""}}

"""What an answer to a chat says, piece by piece, whichever way the upstream wrote it."""

from dataclasses import dataclass, field
from typing import Any

from gateway.errors import ApiError


@dataclass(frozen=True, slots=True)
class CallPart:
    """Part of a tool's call. `number` counts calls from 0; `id` and `name` come with the first part."""

    number: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts; `prompt` includes what was `cached`, `completion` what was `reasoning`."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of an answer. `finish` is OpenAI's finish_reason, `stop` the stop string that ended it, if known."""

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: tuple[CallPart, ...] = ()
    logprobs: tuple[dict[str, Any], ...] = ()
    finish: str | None = None
    stop: str | None = None
    usage: Usage | None = None
    error: ApiError | None = None


@dataclass(slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Said:
    """All of an answer so far."""

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None
    stop: str | None = None
    usage: Usage | None = None

    def add(self, piece: Piece) -> None:
        self.text += piece.text
        self.reasoning += piece.reasoning
        self.refusal += piece.refusal
        self.logprobs += piece.logprobs
        self.finish = piece.finish or self.finish
        self.stop = piece.stop or self.stop
        self.usage = piece.usage or self.usage
        for part in piece.calls:
            if part.number == len(self.calls):
                self.calls.append(ToolCall(part.id, part.name))
            self.calls[part.number].arguments += part.arguments

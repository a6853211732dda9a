"""The content of a chat's answer, piece by piece, independent of the upstream's format."""

from dataclasses import dataclass, field
from typing import Any

import msgspec
import orjson

from runtime.http.api_error import ApiError


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

    @property
    def size_bytes(self) -> int:
        """Return its size in memory, in bytes. Raises RecursionError for logprobs that are nested too deep."""
        words = (self.text, self.reasoning, self.refusal, *(part.arguments for part in self.calls))
        try:
            logprobs_bytes = len(orjson.dumps(self.logprobs)) if self.logprobs else 0
        except orjson.JSONEncodeError:
            raise RecursionError from None
        return logprobs_bytes + sum(len(word.encode()) for word in words if word)


@dataclass(slots=True)
class ToolCall:
    id: str
    name: str
    parts: list[str] = field(default_factory=list)

    @property
    def arguments(self) -> str:
        return "".join(self.parts)

    @property
    def input(self) -> dict[str, Any]:
        """Return the arguments as an object, even if the model wrote invalid JSON."""
        text = self.arguments
        try:
            given = msgspec.json.decode(text or "{}")
        except (msgspec.DecodeError, RecursionError):
            given = None
        return given if isinstance(given, dict) else {"arguments": text}


@dataclass(slots=True)
class Said:
    """The answer so far, kept in parts, because long answers have very many."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None
    stop: str | None = None
    usage: Usage | None = None
    size_bytes: int = 0

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def reasoning(self) -> str:
        return "".join(self.thoughts)

    @property
    def refusal(self) -> str:
        return "".join(self.refusals)

    def add(self, piece: Piece) -> None:
        self.size_bytes += piece.size_bytes
        for words, more in (
            (self.texts, piece.text),
            (self.thoughts, piece.reasoning),
            (self.refusals, piece.refusal),
        ):
            if more:
                words.append(more)
        self.logprobs += piece.logprobs
        self.finish = piece.finish or self.finish
        self.stop = piece.stop or self.stop
        self.usage = piece.usage or self.usage
        for part in piece.calls:
            if part.number == len(self.calls):
                self.calls.append(ToolCall(part.id, part.name))
            self.calls[part.number].parts.append(part.arguments)

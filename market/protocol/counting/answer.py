"""Assemble an answer from OpenAI's chunks so far: its texts, their hash, and how it ended.

Buyer and seller add the same chunks, however they were split on the way, and get the same texts and hash. An
answer beyond the limits is invalid, and the reader stops.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from accounting.metering.delivered import Called, Delivered, readable
from market.errors import StatementInvalid
from market.protocol.channels.transcript import Transcript
from market.protocol.records.canonical import canonical

CHARS_MAX = 2**22
CHOICES_MAX = 128
CALLS_MAX = 128
PIECES_MAX = 2**12
"""Beyond this number, pieces of a text are joined, because each costs ten times its text."""


class AnswerSoFar:
    """The answer so far, fed with chunks. `request` is the digest of the answered request, in hex."""

    def __init__(self, request: str) -> None:
        self._request = request
        self._choices: dict[int, _ChoiceSoFar] = {}
        self.chars = 0
        """Characters of all texts so far: cheap to check before any counting."""

    def add(self, chunk: Mapping[str, Any]) -> None:
        """Add a chunk of a stream, or a whole answer. Parts without text are ignored.

        Raises:
            StatementInvalid: the answer exceeds a limit with it.
        """
        choices = chunk.get("choices")
        for place, part in enumerate(choices if isinstance(choices, list) else ()):
            if isinstance(part, dict):
                self.chars += self._choice(_number(part.get("index"), place, CHOICES_MAX, "choices")).add(part)
        if self.chars > CHARS_MAX:
            raise StatementInvalid(f"an answer may have at most {CHARS_MAX} characters")

    def choices(self) -> tuple[Delivered, ...]:
        """Return the text so far, one entry per choice, in order."""
        return tuple(self.by_index().values())

    def by_index(self) -> dict[int, Delivered]:
        return {index: choice.delivered for index, choice in sorted(self._choices.items())}

    def transcript(self) -> str:
        """Return the hash of everything so far, in hex, as in receipts."""
        return transcript_of(self._request, self.by_index())

    @property
    def finish_reasons(self) -> dict[int, str]:
        """Return the finish reasons of the choices that have ended, by their index."""
        return {index: each.finish for index, each in sorted(self._choices.items()) if each.finish}

    def _choice(self, index: int) -> "_ChoiceSoFar":
        return self._choices.setdefault(index, _ChoiceSoFar())


def transcript_of(request: str, choices: Mapping[int, Delivered]) -> str:
    """Compute the hash in receipts, in hex, from the texts: it decides disputes.

    Raises:
        StatementInvalid: the answer has too many texts.
    """
    transcript = Transcript(request)
    for index, choice in choices.items():
        transcript.add(readable(choice.content), "content", index)
        transcript.add(readable(choice.reasoning), "reasoning", index)
        calls = [[readable(call.name), readable(call.arguments)] for call in choice.calls]
        transcript.add(canonical(calls).decode() if calls else "", "calls", index)
    return transcript.digest()


@dataclass(slots=True)
class _Text:
    """A text that grows by pieces.

    Separated halves of a surrogate pair become one character once both have come.
    """

    pieces: list[str] = field(default_factory=list)

    def add(self, piece: Any) -> int:
        if not isinstance(piece, str) or not piece:
            return 0
        if len(self.pieces) >= PIECES_MAX:
            self.pieces = ["".join(self.pieces)]
        self.pieces.append(piece)
        return len(piece)

    def __str__(self) -> str:
        return readable("".join(self.pieces))


@dataclass(slots=True)
class _ChoiceSoFar:
    content: _Text = field(default_factory=_Text)
    reasoning: _Text = field(default_factory=_Text)
    calls: dict[int, tuple[_Text, _Text]] = field(default_factory=dict)
    finish: str = ""

    @property
    def delivered(self) -> Delivered:
        calls = (Called(str(name), str(arguments)) for _, (name, arguments) in sorted(self.calls.items()))
        return Delivered(str(self.content), str(self.reasoning), tuple(calls))

    def add(self, part: Mapping[str, Any]) -> int:
        """Add a chunk's part and return the number of its characters."""
        if isinstance(reason := part.get("finish_reason"), str):
            self.finish = reason[:32]
        chars = self.content.add(part.get("text"))
        message = part.get("delta") or part.get("message")
        if not isinstance(message, dict):
            return chars
        chars += self.content.add(message.get("content")) + self.content.add(message.get("refusal"))
        # Some servers send it under both names.
        chars += self.reasoning.add(message.get("reasoning_content") or message.get("reasoning"))
        return chars + sum(self._add_call(number, function) for number, function in _functions(message))

    def _add_call(self, number: int, function: Mapping[str, Any]) -> int:
        name, arguments = self.calls.setdefault(number, (_Text(), _Text()))
        return name.add(function.get("name")) + arguments.add(function.get("arguments"))


def _functions(message: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    calls = message.get("tool_calls")
    for place, call in enumerate(calls if isinstance(calls, list) else ()):
        if isinstance(call, dict) and isinstance(function := call.get("function"), dict):
            yield _number(call.get("index"), place, CALLS_MAX, "calls"), function
    if isinstance(function := message.get("function_call"), dict):
        yield 0, function


def _number(index: Any, place: int, most: int, what: str) -> int:
    """Return `index` if it is an integer (`true` is not), else `place`."""
    number = index if type(index) is int else place
    if not 0 <= number < most:
        raise StatementInvalid(f"an answer may have at most {most} {what}")
    return number

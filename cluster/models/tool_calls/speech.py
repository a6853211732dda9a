"""What a model says, by kind: content, thoughts, and calls of tools in pieces as they come."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """Calls are numbered from 0 in the order of their beginning."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next piece of a call's arguments, which are JSON."""

    index: int
    text: str


Speech = Content | Thought | CallBegun | CallArguments


class Listener(Protocol):
    """Takes one answer apart. Wherever its text is cut into pieces, the same comes out, in other pieces."""

    def feed(self, text: str) -> list[Speech]:
        """The next text, and what is certain by now."""

    def end(self) -> list[Speech]:
        """The answer has ended; what was held back."""


def merged(speech: list[Speech]) -> list[Speech]:
    """Neighbours of a kind as one, without empty ones."""
    joined: list[Speech] = []
    for said in speech:
        last = joined[-1] if joined else None
        match said, last:
            case ((Content("") | Thought("") | CallArguments(_, "")), _):
                pass
            case Content(text), Content(before):
                joined[-1] = Content(before + text)
            case Thought(text), Thought(before):
                joined[-1] = Thought(before + text)
            case CallArguments(index, text), CallArguments(same, before) if index == same:
                joined[-1] = CallArguments(index, before + text)
            case _:
                joined.append(said)
    return joined

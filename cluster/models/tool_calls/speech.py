"""The parts of a model's answer: content, thoughts, and tool calls in pieces as they arrive."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Content:
    """A piece of the answer's content."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of a thought."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """The beginning of a call. Calls are numbered from 0 in the order of their beginning."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next piece of a call's arguments, which are JSON."""

    index: int
    text: str


Speech = Content | Thought | CallBegun | CallArguments


class SpeechListener(Protocol):
    """Takes one answer apart. The result does not depend on how its text is cut into pieces."""

    def feed(self, text: str) -> list[Speech]:
        """Take the next text. Return what is certain."""

    def end(self) -> list[Speech]:
        """Note the end of the answer. Return what was held back."""


def merged(speech: list[Speech]) -> list[Speech]:
    """Return neighbours of a kind joined, without empty ones."""
    joined: list[Speech] = []
    for part in speech:
        last = joined[-1] if joined else None
        match part, last:
            case ((Content("") | Thought("") | CallArguments(_, "")), _):
                pass
            case Content(text), Content(before):
                joined[-1] = Content(before + text)
            case Thought(text), Thought(before):
                joined[-1] = Thought(before + text)
            case CallArguments(index, text), CallArguments(same, before) if index == same:
                joined[-1] = CallArguments(index, before + text)
            case _:
                joined.append(part)
    return joined

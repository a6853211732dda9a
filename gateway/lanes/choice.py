"""Reads the text of a choice, from one event or a whole answer. All modules share this reading."""

from collections.abc import Iterator
from typing import Any, NamedTuple


class CallSaid(NamedTuple):
    """Part of a tool call, or all of it; `number` identifies the call within its choice."""

    number: int
    name: str
    arguments: str


class ChoiceSaid(NamedTuple):
    """New text of a choice. Refusals belong to the content."""

    content: str
    reasoning: str
    calls: tuple[CallSaid, ...]

    @property
    def text(self) -> str:
        return self.content + self.reasoning + "".join(call.name + call.arguments for call in self.calls)


def said_of(choice: dict[str, Any]) -> ChoiceSaid:
    """Values that are not text are ignored."""
    message = choice.get("delta") or choice.get("message") or {}
    content = _text(choice.get("text"))
    if not isinstance(message, dict):
        return ChoiceSaid(content, "", ())
    content += _text(message.get("content")) + _text(message.get("refusal"))
    # Some servers send the text under both names.
    reasoning = _text(message.get("reasoning_content")) or _text(message.get("reasoning"))
    return ChoiceSaid(content, reasoning, tuple(_calls(message)))


def said_in(choice: Any) -> str:
    """Return everything generated in a choice of an answer or of a stream's event, including tool calls."""
    return said_of(choice).text if isinstance(choice, dict) else ""


def _calls(message: dict[str, Any]) -> Iterator[CallSaid]:
    calls = message.get("tool_calls")
    for place, call in enumerate(calls if isinstance(calls, list) else ()):
        if isinstance(call, dict):
            index = call.get("index")
            yield from _call(index if isinstance(index, int) else place, call.get("function"))
    yield from _call(0, message.get("function_call"))


def _call(number: int, function: Any) -> Iterator[CallSaid]:
    if isinstance(function, dict):
        yield CallSaid(number, _text(function.get("name")), _text(function.get("arguments")))


def _text(text: Any) -> str:
    return text if isinstance(text, str) else ""

"""Assembles an answer's text from its bytes as they pass: streamed or whole, in OpenAI's format."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from accounting.metering.delivered import Called, Delivered
from gateway.dialects.openai import CompletionRequest, Request
from gateway.lanes.choice import CallSaid, said_of
from gateway.lanes.tee import data_of

# An event's JSON is twenty times its text: beyond this size it is parsed, and only the text is kept.
_KEPT_BYTES_MAX = 64 * 2**10
# Far above any real answer. Text beyond this bound is neither recorded nor charged.
TEXT_CHARS_MAX = 2**22
CHOICES_MAX = 1024
"""The maximum number of choices of an answer that are followed."""
_CALLS_MAX = 1024


def generated(delivered: Mapping[int, Delivered], request: Request) -> tuple[Delivered, ...]:
    """The text of each choice, without an echoed prompt, which is already paid."""
    if not (isinstance(request, CompletionRequest) and request.echo):
        return tuple(delivered.values())
    prompts = [request.prompt] if isinstance(request.prompt, str) else request.prompt
    return tuple(
        _without(each, prompts[index // (request.n or 1) % len(prompts)]) for index, each in delivered.items()
    )


class Transcript:
    """Collects an answer's text from its bytes. Add whole events, or a whole answer."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._kept_bytes = 0
        self._choices: dict[int, _Choice] = {}
        self._chars = 0

    def add(self, data: bytes) -> None:
        self._chunks.append(data)
        self._kept_bytes += len(data)
        if self._kept_bytes > _KEPT_BYTES_MAX and self._is_stream:
            self._read()

    def choices(self) -> tuple[Delivered, ...]:
        """Return the text so far, by choice."""
        return tuple(self.by_index().values())

    def by_index(self) -> dict[int, Delivered]:
        self._read()
        return {index: choice.delivered for index, choice in sorted(self._choices.items())}

    def finished(self) -> int:
        """Return the number of choices that have ended."""
        self._read()
        return sum(choice.has_finished for choice in self._choices.values())

    @property
    def _is_stream(self) -> bool:
        return bool(self._choices) or not self._chunks[0].lstrip().startswith(b"{")

    def _read(self) -> None:
        if not self._chunks:
            return
        is_stream = self._is_stream
        content, self._chunks, self._kept_bytes = b"".join(self._chunks), [], 0
        for data in data_of(content) if is_stream else [content]:
            self._read_event(_as_object(data))

    def _read_event(self, event: dict[str, Any]) -> None:
        choices = event.get("choices")
        for place, said in enumerate(choices if isinstance(choices, list) else ()):
            if not isinstance(said, dict) or self._chars > TEXT_CHARS_MAX:
                continue
            index = said.get("index")
            number = index if isinstance(index, int) else place
            choice = self._choices.get(number)
            if choice is None:
                if len(self._choices) >= CHOICES_MAX:
                    continue
                choice = self._choices[number] = _Choice()
            self._chars += choice.hear(said)


@dataclass(slots=True)
class _Choice:
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, tuple[list[str], list[str]]] = field(default_factory=dict)
    has_finished: bool = False

    @property
    def delivered(self) -> Delivered:
        calls = (Called("".join(name), "".join(arguments)) for name, arguments in self.calls.values())
        return Delivered("".join(self.content), "".join(self.reasoning), tuple(calls))

    def hear(self, choice: dict[str, Any]) -> int:
        """Take one event's part, or the whole answer; return its number of characters."""
        if choice.get("finish_reason"):
            self.has_finished = True
        texts = said_of(choice)
        chars = _add(self.content, texts.content) + _add(self.reasoning, texts.reasoning)
        return chars + sum(map(self._hear_call, texts.calls))

    def _hear_call(self, part: CallSaid) -> int:
        if part.number not in self.calls and len(self.calls) >= _CALLS_MAX:
            return 0
        name, arguments = self.calls.setdefault(part.number, ([], []))
        return _add(name, part.name) + _add(arguments, part.arguments)


def _without(delivered: Delivered, prompt: str | int | list[int]) -> Delivered:
    """Return the text after the prompt. The text of a prompt given as tokens is unknown here."""
    if not isinstance(prompt, str):
        return delivered
    content = delivered.content
    return replace(delivered, content="" if prompt.startswith(content) else content.removeprefix(prompt))


def _add(texts: list[str], text: str) -> int:
    if text:
        texts.append(text)
    return len(text)


def _as_object(data: bytes) -> dict[str, Any]:
    try:
        event = orjson.loads(data)
    except orjson.JSONDecodeError:
        event = read_leniently(data)
    return event if isinstance(event, dict) else {}


def read_leniently(data: bytes) -> Any:
    """Parse JSON leniently.

    Some servers send halves of characters separately, which most clients' parsers accept.
    """
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None

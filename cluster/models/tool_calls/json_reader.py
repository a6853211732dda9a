"""JSON read character by character: the end of a value, and a tool call that is written as an object."""

import json
from typing import Any

from cluster.models.tool_calls.speech import CallArguments, CallBegun, Speech

# The names of a call's arguments in different models, and the fields that may stand beside them.
_ARGUMENTS = frozenset(("arguments", "parameters"))
_BESIDE = frozenset(("name", "type", "id", *_ARGUMENTS))


class Nesting:
    """The depth of the reader within a JSON value."""

    def __init__(self) -> None:
        self.depth = 0
        self.in_string = False
        self._escaped = False

    def step(self, character: str) -> None:
        if self.in_string:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self.in_string = False
        elif character == '"':
            self.in_string = True
        elif character in "{[":
            self.depth += 1
        elif character in "}]":
            self.depth -= 1


class ObjectReader:
    """Reads a call's arguments that stand alone, as one JSON object or array."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._nesting = Nesting()
        self.is_done = False

    def read(self, text: str) -> tuple[list[Speech], int]:
        """Return the part of the text that belongs to the value, and its number of characters."""
        for at, character in enumerate(text):
            self._nesting.step(character)
            if self._nesting.depth <= 0 and not self._nesting.in_string:
                self.is_done = True
                return [CallArguments(self._index, text[: at + 1])], at + 1
        return [CallArguments(self._index, text)], len(text)


class CallReader:
    """Reads a call as an object with the function's name and arguments, in either order, from its brace on.

    Arguments are passed on as they come once the name is known. An object that is not a call sets `is_broken`.
    `raw` is everything that was read, and `is_begun` says whether the call was announced. With `known`, only these
    functions can be called.
    """

    def __init__(self, index: int, known: frozenset[str] | None = None) -> None:
        self._index = index
        self._known = known
        self._nesting = Nesting()
        self._key: str | None = None
        self._piece = ""
        self._name: str | None = None
        self._arguments: str | None = None
        self._streams = False
        self.raw = ""
        self.is_done = False
        self.is_broken = False

    @property
    def is_begun(self) -> bool:
        return self._name is not None

    def read(self, text: str) -> tuple[list[Speech], int]:
        """Return what is certain, and how many characters belong to the object."""
        speech: list[Speech] = []
        for at, character in enumerate(text):
            self.raw += character
            self._read(character, speech)
            if self.is_done or self.is_broken:
                return speech, at + 1
        return speech, len(text)

    def _read(self, character: str, speech: list[Speech]) -> None:
        nesting = self._nesting
        is_structure = nesting.depth == 1 and not nesting.in_string
        nesting.step(character)
        if len(self.raw) == 1:
            self.is_broken = character != "{"
        elif is_structure and character == ":" and self._key is None:
            self._take_key()
        elif is_structure and character in ",}":
            self._take_value(speech)
            self.is_done = character == "}"
            if self.is_done and not self.is_broken:
                self._finish(speech)
        elif is_structure and character == "]":
            self.is_broken = True
        else:
            self._add(character, speech)

    def _add(self, character: str, speech: list[Speech]) -> None:
        self._piece += character
        if self._streams:
            speech.append(CallArguments(self._index, character))
        elif self._key in _ARGUMENTS and self.is_begun and self._piece.lstrip().startswith("{"):
            self._streams = True
            speech.append(CallArguments(self._index, self._piece.lstrip()))

    def _take_key(self) -> None:
        key = _loads(self._piece)
        self._key, self._piece = key if isinstance(key, str) else "", ""
        self.is_broken = self._key not in _BESIDE

    def _take_value(self, speech: list[Speech]) -> None:
        key, text = self._key, self._piece.strip()
        streamed, self._streams = self._streams, False
        self._key, self._piece = None, ""
        if key is None:
            self.is_broken = bool(text) or self._nesting.depth > 0
        elif key == "name" and not self.is_begun:
            self._take_name(_loads(text), speech)
        elif key in _ARGUMENTS and not streamed:
            self._take_arguments(text, speech)
        elif key in _ARGUMENTS:
            self._arguments = text

    def _take_name(self, name: Any, speech: list[Speech]) -> None:
        if not isinstance(name, str) or not name or (self._known is not None and name not in self._known):
            self.is_broken = True
            return
        self._name = name
        speech.append(CallBegun(self._index, name))
        if self._arguments is not None:
            speech.append(CallArguments(self._index, self._arguments))

    def _take_arguments(self, text: str, speech: list[Speech]) -> None:
        """Take the arguments. Some models write them as a string that holds JSON."""
        value = _loads(text)
        self._arguments = value if isinstance(value, str) else "{}" if value is None else text
        if self.is_begun:
            speech.append(CallArguments(self._index, self._arguments))

    def _finish(self, speech: list[Speech]) -> None:
        self.is_broken = not self.is_begun
        if self.is_begun and self._arguments is None:
            speech.append(CallArguments(self._index, "{}"))


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None

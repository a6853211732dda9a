"""Calls whose function stands before the arguments: [TOOL_CALLS]name[ARGS]{...}, and DeepSeek's."""

import re
from dataclasses import dataclass

from cluster.models.tool_calls.forms import DEEPSEEK_CALL, DEEPSEEK_CALLS, DEEPSEEK_CALLS_END, DEEPSEEK_SEPARATOR
from cluster.models.tool_calls.json_reader import ObjectReader
from cluster.models.tool_calls.markers import WindowListener
from cluster.models.tool_calls.speech import CallArguments, CallBegun, Speech
from cluster.models.tool_calls.white_space import Spacing

# A longer head without arguments is not a call.
_HEAD_CHARACTERS_MAX = 400


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of a format. `call` opens each call; `section` and `section_end` stand around all of them, if set.

    `name` finds the function between the opening mark and the arguments.
    """

    call: str
    name: re.Pattern[str]
    section: str = ""
    section_end: str = ""


MISTRAL = Marks("[TOOL_CALLS]", re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\][^\[]*)?(?:\[ARGS\])?\s*"))
DEEPSEEK = Marks(
    DEEPSEEK_CALL,
    re.compile(rf"(?:function{DEEPSEEK_SEPARATOR})?\s*([\w.-]+)\s*(?:{DEEPSEEK_SEPARATOR}\s*)?(?:```json)?\s*"),
    DEEPSEEK_CALLS,
    DEEPSEEK_CALLS_END,
)


class NamedListener(WindowListener):
    """Parses answers with such calls."""

    def __init__(self, marks: Marks) -> None:
        super().__init__()
        self._marks = marks
        self._openings = (marks.call, marks.section) if marks.section else (marks.call,)
        self._spacing = Spacing()
        # Whether the parser is within the section, and the head of the call that it is in.
        self._is_inside = False
        self._head: str | None = None
        self._reader: ObjectReader | None = None

    def _step(self, speech: list[Speech]) -> None:
        if self._reader:
            self._read(self._reader, speech)
        elif self._head is not None:
            self._read_head(speech)
        elif self._is_inside:
            self._look_for_call()
        else:
            self._look_for_opening(speech)

    def end(self) -> list[Speech]:
        if self._reader:
            return []
        left = "" if self._is_inside and self._head is None else self._window.take_all()
        if self._head is not None:
            left = self._marks.call + self._head + left
        return [self._spacing.content(left), self._spacing.end()]

    def _look_for_opening(self, speech: list[Speech]) -> None:
        before, mark = self._window.take_until(*self._openings)
        speech.append(self._spacing.content(before))
        self._is_inside = mark == self._marks.section != ""
        if mark == self._marks.call:
            self._head = ""

    def _look_for_call(self) -> None:
        _, mark = self._window.take_until(self._marks.call, self._marks.section_end)
        self._is_inside = mark != self._marks.section_end
        if mark == self._marks.call:
            self._head = ""

    def _read_head(self, speech: list[Speech]) -> None:
        assert self._head is not None
        before, mark = self._window.take_until("{")
        self._head += before
        if not mark and len(self._head) <= _HEAD_CHARACTERS_MAX:
            return
        head, self._head = self._head, None
        match = self._marks.name.fullmatch(head) if mark else None
        if not match:
            speech.append(self._spacing.content(self._marks.call + head + mark))
            self._is_inside = False
            return
        self._spacing.call()
        self._reader = ObjectReader(self._calls)
        self._reader.read(mark)
        speech += [CallBegun(self._calls, match[1]), CallArguments(self._calls, mark)]
        self._calls += 1

    def _read(self, reader: ObjectReader, speech: list[Speech]) -> None:
        parts, count = reader.read(self._window.text)
        self._window.take(count)
        speech += parts
        if reader.is_done:
            self._reader = None
            self._is_inside = bool(self._marks.section)

"""Calls as objects between marks in the text: <tool_call>{...}</tool_call>, [TOOL_CALLS][{...}, {...}]."""

from cluster.models.tool_calls.json_reader import CallReader
from cluster.models.tool_calls.markers import WindowListener
from cluster.models.tool_calls.speech import Speech
from cluster.models.tool_calls.white_space import Spacing


class TaggedListener(WindowListener):
    """Parses content up to `opening`, then objects, each a call, and then content again.

    Text between the objects is skipped. Without a `closing` the calls go on to the end. What is not a call is
    content, with its marks.
    """

    def __init__(self, opening: str, closing: str = "") -> None:
        super().__init__()
        self._opening = opening
        self._marks = ("{", closing) if closing else ("{",)
        self._spacing = Spacing()
        self._is_inside = False
        # The text since the opening mark, as long as it has no call.
        self._unused = ""
        self._reader: CallReader | None = None

    def _step(self, speech: list[Speech]) -> None:
        if self._reader:
            self._read(self._reader, speech)
        elif self._is_inside:
            self._look_for_call(speech)
        else:
            self._look_for_opening(speech)

    def end(self) -> list[Speech]:
        if self._reader and not self._reader.is_begun:
            self._unused += self._reader.raw
        left = self._unused
        if not self._is_inside or left:
            left += self._window.take_all()
        return [self._spacing.content(left), self._spacing.end()]

    def _look_for_opening(self, speech: list[Speech]) -> None:
        before, mark = self._window.take_until(self._opening)
        speech.append(self._spacing.content(before))
        if mark:
            self._is_inside, self._unused = True, mark

    def _look_for_call(self, speech: list[Speech]) -> None:
        """Look for the next call. Commas, brackets and line breaks between calls mean nothing."""
        between, mark = self._window.take_until(*self._marks)
        if self._unused:
            self._unused += between
        if mark == "{":
            self._reader = CallReader(self._calls)
            self._reader.read(mark)
        elif mark:
            self._leave(mark, speech)

    def _read(self, reader: CallReader, speech: list[Speech]) -> None:
        parts, count = reader.read(self._window.text)
        self._window.take(count)
        speech += parts
        if reader.is_begun:
            self._spacing.call()
            self._unused = ""
        if reader.is_done or reader.is_broken:
            self._calls += reader.is_begun
            self._reader = None
        if reader.is_broken and not reader.is_begun:
            self._unused = self._unused or self._opening
            self._leave(reader.raw, speech)

    def _leave(self, text: str, speech: list[Speech]) -> None:
        """Return to content. Text that was not a call is content, too."""
        self._is_inside = False
        if self._unused:
            speech.append(self._spacing.content(self._unused + text))
            self._unused = ""

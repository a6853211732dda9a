"""Answers that consist of calls: an object with a known function's name, or several separated by semicolons."""

from cluster.models.tool_calls.json_reader import CallReader
from cluster.models.tool_calls.markers import WindowListener
from cluster.models.tool_calls.speech import Content, Speech


class BareListener(WindowListener):
    """Parses such an answer, which may begin with `mark`. Anything but calls of `known` functions is content."""

    def __init__(self, known: frozenset[str], mark: str = "") -> None:
        super().__init__()
        self._known, self._mark = known, mark
        self._is_content = False
        self._reader: CallReader | None = None
        # The text since the last call.
        self._held = ""

    def feed(self, text: str) -> list[Speech]:
        return [Content(text)] if self._is_content else super().feed(text)

    def _step(self, speech: list[Speech]) -> None:
        if self._reader:
            self._read(self._reader, speech)
        else:
            self._begin(speech)

    def end(self) -> list[Speech]:
        if self._is_content or (self._reader and self._reader.is_begun):
            return []
        left = self._held + (self._reader.raw if self._reader else "") + self._window.take_all()
        return [Content(left)] if left.strip(" \n;") or not self._calls else []

    def _begin(self, speech: list[Speech]) -> None:
        self._held += self._window.take_space()
        text = self._window.text
        if text.startswith("{"):
            self._reader = CallReader(self._calls, self._known)
            self._reader.read(self._window.take(1))
        elif self._mark and text.startswith(self._mark) and not self._calls:
            self._held += self._window.take(len(self._mark))
        elif text.startswith(";") and self._calls:
            self._held += self._window.take(1)
        elif text and not (self._mark.startswith(text) and not self._calls):
            self._say(self._window.take_all(), speech)

    def _read(self, reader: CallReader, speech: list[Speech]) -> None:
        parts, count = reader.read(self._window.text)
        self._window.take(count)
        speech += parts
        if reader.is_begun:
            self._held = ""
        if reader.is_done or reader.is_broken:
            self._calls += reader.is_begun
            self._reader = None
        if reader.is_broken and not reader.is_begun:
            self._say(reader.raw + self._window.take_all(), speech)

    def _say(self, text: str, speech: list[Speech]) -> None:
        self._is_content = True
        speech.append(Content(self._held + text))

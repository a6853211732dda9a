"""Thoughts, separated from the text that follows them."""

from cluster.models.tool_calls.markers import Window
from cluster.models.tool_calls.speech import Content, Speech, SpeechListener, Thought


class Plain:
    """Treats everything as content."""

    def feed(self, text: str) -> list[Speech]:
        return [Content(text)]

    def end(self) -> list[Speech]:
        return []


class ThoughtListener:
    """Parses a thought at the beginning, then the rest. `is_thinking`: the prompt has begun the thought."""

    def __init__(self, marks: tuple[str, str], rest: SpeechListener, *, is_thinking: bool) -> None:
        self._opening, self._closing = marks
        self._rest = rest
        self._window = Window()
        self._is_thinking = is_thinking
        self._is_over = False
        # Line breaks around a thought belong neither to it nor to the rest.
        self._skips_space = True
        self._space = ""

    def feed(self, text: str) -> list[Speech]:
        if self._is_over and not self._skips_space:
            return self._rest.feed(text)
        self._window.push(text)
        speech: list[Speech] = []
        if not self._is_thinking and not self._is_over:
            self._look_for_opening()
        if self._is_thinking:
            self._think(speech)
        if self._is_over:
            self._go_on(speech)
        return speech

    def end(self) -> list[Speech]:
        left = self._window.take_all()
        if self._is_thinking:
            return [Thought(self._space + left)]
        return [*self._rest.feed(self._space + left), *self._rest.end()]

    def _look_for_opening(self) -> None:
        self._space += self._window.take_space()
        begun = self._window.text[: len(self._opening)]
        if begun == self._opening:
            self._window.take(len(self._opening))
            self._space = ""
            self._is_thinking = True
        elif not self._opening.startswith(begun):
            self._is_over = True
            self._skips_space = False

    def _think(self, speech: list[Speech]) -> None:
        if self._skips_space:
            self._window.take_space()
            self._skips_space = not self._window
        before, mark = self._window.take_until(self._closing)
        text = self._space + before
        kept = text.rstrip()
        self._space = "" if mark else text[len(kept) :]
        speech.append(Thought(kept))
        if mark:
            self._is_thinking, self._is_over, self._skips_space = False, True, True

    def _go_on(self, speech: list[Speech]) -> None:
        if self._skips_space:
            self._window.take_space()
            self._skips_space = not self._window
        if self._space or self._window:
            speech += self._rest.feed(self._space + self._window.take_all())
            self._space = ""

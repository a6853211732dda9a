"""Detection of marks in text that arrives in pieces."""

from abc import ABC, abstractmethod

from cluster.models.tool_calls.speech import Speech


class Window:
    """Text that has arrived and was not taken yet. A possible beginning of a mark stays until that is certain."""

    def __init__(self) -> None:
        self._text = ""

    def __bool__(self) -> bool:
        return bool(self._text)

    @property
    def text(self) -> str:
        return self._text

    def push(self, text: str) -> None:
        self._text += text

    def take(self, count: int) -> str:
        """Remove and return the first `count` characters."""
        taken, self._text = self._text[:count], self._text[count:]
        return taken

    def take_all(self) -> str:
        return self.take(len(self._text))

    def take_until(self, *marks: str) -> tuple[str, str]:
        """Remove and return the text before the first of these marks, and the mark itself.

        Without a mark: the text that is certainly before any mark, and an empty mark.
        """
        first = min(((at, mark) for mark in marks if (at := self._text.find(mark)) >= 0), default=None)
        if first is None:
            return self.take(len(self._text) - self._open_end(marks)), ""
        before = self.take(first[0])
        return before, self.take(len(first[1]))

    def take_space(self) -> str:
        """Remove and return the leading white space."""
        return self.take(len(self._text) - len(self._text.lstrip()))

    def _open_end(self, marks: tuple[str, ...]) -> int:
        """Return the length of the longest end of the text that begins a mark."""
        longest = min(len(self._text), max(map(len, marks)) - 1)
        for length in range(longest, 0, -1):
            if any(mark.startswith(self._text[-length:]) for mark in marks):
                return length
        return 0


class WindowListener(ABC):
    """A parser that takes its text from a window, step by step, and counts its calls."""

    def __init__(self) -> None:
        self._window = Window()
        self._calls = 0

    def feed(self, text: str) -> list[Speech]:
        """Take the next text. Return what is certain."""
        self._window.push(text)
        speech: list[Speech] = []
        left = ""
        while self._window and left != self._window.text:
            left = self._window.text
            self._step(speech)
        return speech

    @abstractmethod
    def _step(self, speech: list[Speech]) -> None:
        """Take what is certain from the window, and add it to the speech. Taking nothing waits for more text."""

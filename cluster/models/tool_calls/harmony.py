"""The channels of gpt-oss: analysis is thought, final is content, and a message with a recipient is a call."""

import re

from cluster.models.tool_calls.markers import WindowListener
from cluster.models.tool_calls.speech import CallArguments, CallBegun, Content, Speech, Thought

_MESSAGE = "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
_RECIPIENT = re.compile(r"\bto=([\w.-]+)")
_FUNCTION = re.compile(r"functions\.([\w.-]+)")


class HarmonyListener(WindowListener):
    """Parses messages, each a header up to <|message|> and a body. The prompt has begun the first header."""

    def __init__(self) -> None:
        super().__init__()
        self._header: str | None = ""
        self._channel = "final"
        self._has_arguments = False

    def _step(self, speech: list[Speech]) -> None:
        if self._header is None:
            self._read_body(speech)
        else:
            self._read_header(speech)

    def end(self) -> list[Speech]:
        left = self._window.take_all()
        if self._header is None:
            return [*self._body_speech(left), *self._finished()]
        # A model that writes no channels at all has still given an answer.
        return [Content(self._header + left)] if "<|" not in self._header + left else []

    def _read_header(self, speech: list[Speech]) -> None:
        assert self._header is not None
        before, mark = self._window.take_until(_MESSAGE)
        self._header += before
        if not mark:
            return
        header, self._header = self._header, None
        recipient = _RECIPIENT.search(header)
        called = _FUNCTION.fullmatch(recipient[1]) if recipient else None
        if called:
            self._channel, self._has_arguments = "call", False
            speech.append(CallBegun(self._calls, called[1]))
        else:
            # Messages to other recipients, such as a browser that does not exist here, are only for the model.
            self._channel = "analysis" if recipient or "analysis" in header else "final"

    def _read_body(self, speech: list[Speech]) -> None:
        before, mark = self._window.take_until(*_ENDS)
        speech += self._body_speech(before)
        if mark:
            speech += self._finished()
            self._header = ""

    def _body_speech(self, text: str) -> list[Speech]:
        if self._channel == "call":
            self._has_arguments = self._has_arguments or bool(text)
            return [CallArguments(self._calls, text)]
        return [Thought(text) if self._channel == "analysis" else Content(text)]

    def _finished(self) -> list[Speech]:
        if self._channel != "call":
            return []
        self._calls += 1
        return [] if self._has_arguments else [CallArguments(self._calls - 1, "{}")]

"""Content without the white space that only separates calls from it."""

from cluster.models.tool_calls.speech import Content


class Spacing:
    """Holds white space back until it is known what follows. It is dropped before and after calls."""

    def __init__(self) -> None:
        self._held = ""
        self._follows_call = False

    def content(self, text: str) -> Content:
        """Return the part of the content that is certain."""
        if self._follows_call:
            text = text.lstrip()
            self._follows_call = not text
        text = self._held + text
        kept = text.rstrip()
        self._held = text[len(kept) :]
        return Content(kept)

    def call(self) -> None:
        """Note that a call has begun or ended here."""
        self._held, self._follows_call = "", True

    def end(self) -> Content:
        return Content(self._held)

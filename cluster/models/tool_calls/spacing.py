"""Content without the white space that only sets calls apart from it."""

from cluster.models.tool_calls.speech import Content


class Spacing:
    """Holds white space back until it is known what follows: before and after calls it is dropped."""

    def __init__(self) -> None:
        self._held = ""
        self._follows_call = False

    def content(self, text: str) -> Content:
        """What of the content is certain by now."""
        if self._follows_call:
            text = text.lstrip()
            self._follows_call = not text
        text = self._held + text
        kept = text.rstrip()
        self._held = text[len(kept) :]
        return Content(kept)

    def call(self) -> None:
        """A call has begun or ended here."""
        self._held, self._follows_call = "", True

    def end(self) -> Content:
        return Content(self._held)

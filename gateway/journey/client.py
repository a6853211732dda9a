"""Who is answered, as the journey sees it."""

from typing import Protocol

from gateway.errors import ApiError
from gateway.lanes.body import Out


class Client(Out, Protocol):
    """Takes a head, bytes, and an end. Whoever goes away cancels the journey's task."""

    def begin(self, status: int, headers: list[tuple[bytes, bytes]], *, is_stream: bool) -> None:
        """The head; it may leave with the first bytes."""

    def finish(self) -> None:
        """Everything was written."""

    def break_off(self, error: ApiError) -> None:
        """No more will come, and not everything was written."""

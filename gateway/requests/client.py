"""The client of a request, as the journey sees it."""

from collections.abc import Sequence
from typing import Protocol

from gateway.lanes.body import Out
from runtime.http.api_error import ApiError


class Client(Out, Protocol):
    """Takes a head, bytes, and an end. A client that disconnects cancels the journey's task."""

    def begin(self, status: int, headers: list[tuple[bytes, bytes]], *, is_stream: bool) -> None:
        """The head; it may leave with the first bytes."""

    @property
    def is_gone(self) -> bool:
        """Whether the client stopped reading: bytes written now are lost."""

    @property
    def keeps_calls(self) -> bool:
        """Calls of tools that were written have not left for the reader yet, and will only at the end."""

    def follow(self) -> None:
        """`is_full`, until this answer ends, while anything waits here that the reader's socket did not take."""

    def finish(self, trailers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Everything was written. Trailers follow if they are allowed; the head has announced them."""

    def break_off(self, error: ApiError) -> None:
        """No more will come, and not everything was written."""

"""The interface of a request's client, such as a connection, and the base of sinks that pass answers to one."""

from collections.abc import Sequence
from typing import Protocol

from gateway.lanes.body import Out, Sink
from runtime.http.api_error import ApiError


class Client(Out, Protocol):
    """Takes a head, bytes, and an end. A client that disconnects cancels the request's task."""

    def begin(self, status: int, headers: list[tuple[bytes, bytes]], *, is_stream: bool) -> None:
        """Begin an answer; the head may be sent with the first bytes."""

    @property
    def is_gone(self) -> bool:
        """Whether the client stopped reading; further bytes are lost."""

    @property
    def keeps_calls(self) -> bool:
        """Whether written tool calls are held back until the end."""
        return False

    def follow(self) -> None:
        """From now on, set `is_full` while any bytes wait here that the reader's socket did not accept."""

    def finish(self, trailers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """End a complete answer. Trailers follow if they are allowed; the head has announced them."""

    def break_off(self, error: ApiError) -> None:
        """End an incomplete answer."""


class ClientSink(Sink):
    """Passes an answer on to another client. A subclass overrides what it changes."""

    _out: Client

    def __init__(self, client: Client) -> None:
        super().__init__(client)

    def begin(self, status: int, headers: list[tuple[bytes, bytes]], *, is_stream: bool) -> None:
        self._out.begin(status, headers, is_stream=is_stream)

    @property
    def is_gone(self) -> bool:
        return self._out.is_gone

    @property
    def keeps_calls(self) -> bool:
        return self._out.keeps_calls

    def follow(self) -> None:
        self._out.follow()

    def finish(self, trailers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self._out.finish(trailers)

    def break_off(self, error: ApiError) -> None:
        self._out.break_off(error)

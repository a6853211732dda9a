"""Connections to PostgreSQL that bound every wait on this side, whatever the server or the network does.

A server that is frozen, or behind a proxy that forwards nothing, keeps its connections open and answers nothing:
its own timeouts do not run. A waiting thread therefore opens a test connection at intervals. If the server does
not answer that either, every waiting thread gets an error, and no thread waits until the server answers again.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from psycopg import Connection, Error, OperationalError
from psycopg.abc import RV, PQGen
from psycopg.errors import ConnectionTimeout

STATEMENT_TIMEOUT_S = 30
CONNECT_TIMEOUT_S = 5
# The time that the server needs, beyond the statement itself, to report a timeout.
_TRANSFER_S = 5.0
# The wait for an answer, in seconds, before a test of whether the server answers at all.
_PATIENCE_S = 2.0
# After a try to connect that was not answered, before the next one.
_AGAIN_S = 1.0


class ServerSilent(OperationalError):
    """The server does not answer. SQLAlchemy makes it a `sqlalchemy.exc.OperationalError`."""


class Server:
    """One engine's server, as its connections find it. Used from many threads; only one tries a silent server."""

    def __init__(self) -> None:
        self._is_silent = False
        self._tried_s = float("-inf")
        self._trying = threading.Lock()

    @property
    def is_silent(self) -> bool:
        """Return whether the last attempt to connect was not answered."""
        return self._is_silent

    def connect(self, *arguments: Any, **parameters: Any) -> "BoundedConnection":
        """Open a connection. Raises ServerSilent immediately while another thread tests the server."""
        if not self._is_silent:
            return self._try(arguments, parameters)
        if not self._trying.acquire(blocking=False):
            raise ServerSilent("the server does not answer")
        try:
            if time.monotonic() - self._tried_s < _AGAIN_S:
                raise ServerSilent("the server did not answer a moment ago")
            return self._try(arguments, parameters)
        finally:
            self._trying.release()

    def probe(self, connect: "Callable[[], BoundedConnection]") -> bool:
        """Return whether the server answers. During another thread's test, return the last known state."""
        if self._is_silent:
            return False
        if self._trying.acquire(blocking=False):
            try:
                connect().close()
            except Error:
                pass  # An answer, if it came in time: `_try` has noted whether it did.
            finally:
                self._trying.release()
        return not self._is_silent

    def _try(self, arguments: tuple[Any, ...], parameters: dict[str, Any]) -> "BoundedConnection":
        def open_one() -> BoundedConnection:
            return self._open(arguments, parameters)

        connection = open_one()
        connection.ask_server = lambda: self.probe(open_one)
        return connection

    def _open(self, arguments: tuple[Any, ...], parameters: dict[str, Any]) -> "BoundedConnection":
        try:
            connection = BoundedConnection.connect(*arguments, **parameters)
        except ConnectionTimeout:
            self._is_silent, self._tried_s = True, time.monotonic()
            raise
        self._is_silent = False
        return connection


def _assume_alive() -> bool:
    return True


class BoundedConnection(Connection[Any]):
    """Waits for no answer longer than `answer_s`, and less for a server that does not answer at all."""

    answer_s = STATEMENT_TIMEOUT_S + _TRANSFER_S
    ask_server: Callable[[], bool] = staticmethod(_assume_alive)

    def allow(self, statement_s: float | None) -> None:
        """Set the statement timeout in seconds, as set at the server; None for the default."""
        self.answer_s = (STATEMENT_TIMEOUT_S if statement_s is None else statement_s) + _TRANSFER_S

    def wait(self, gen: PQGen[RV], *arguments: Any, **parameters: Any) -> RV:
        return super().wait(self._bounded(gen), *arguments, **parameters)

    def _bounded(self, waiting: PQGen[RV]) -> PQGen[RV]:
        """As `waiting`, which is sent nothing now and then, until the answer is there or will not come."""
        try:
            awaited = next(waiting)
            began_s = time.monotonic()
            asks_s = began_s + _PATIENCE_S
            while True:
                ready = yield awaited
                if not ready and (now_s := time.monotonic()) >= asks_s:
                    if now_s - began_s > self.answer_s or not self.ask_server():
                        # Its state is unknown, so it must not be reused. The pool sees that it is closed.
                        self.pgconn.finish()
                        raise ServerSilent("the server does not answer")
                    asks_s = time.monotonic() + _PATIENCE_S
                awaited = waiting.send(ready)
        except StopIteration as end:
            answer: RV = end.value
            return answer

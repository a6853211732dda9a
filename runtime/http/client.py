"""A small HTTP/1.1 client for the traffic itself: kept-alive connections, one timer, no redirects, no parsing."""

import asyncio
import ssl
from functools import lru_cache

from runtime.http.origin import Origin
from runtime.http.upstream import Connection, Receiver

CONNECT_S = 5.0
# Common servers close an idle connection after five seconds. A close just as it is used costs a request, so this
# client closes its connections first.
IDLE_S = 4.0
IDLE_MAX = 256
LOOK_EVERY_S = 0.2


class Unreachable(Exception):
    """No connection: nothing was sent."""


class NoRoom(Exception):
    """The limit of open connections to this backend is reached."""


class Client:
    """Owns every connection to every backend, and the timer that ends what takes too long."""

    def __init__(self, connections_max: int | None = None, tls: ssl.SSLContext | None = None) -> None:
        """`connections_max` is for each origin; requests have their own bound before they come here (`Turns`).

        `tls` is for callers that trust more certificates than the system does.
        """
        self._connections_max = connections_max
        self._tls = tls
        self._idle: dict[Origin, list[Connection]] = {}
        self._open: set[Connection] = set()
        self._being_made: set[Connection] = set()
        # Open connections and those being opened.
        self._counts: dict[Origin, int] = {}
        self._looking: asyncio.TimerHandle | None = None

    async def ask(
        self, origin: Origin, parts: list[bytes], receiver: Receiver, *, is_fresh: bool = False
    ) -> Connection:
        """Send a request; returns once it is on its way. Raises Unreachable and NoRoom."""
        if not is_fresh and (idle := self.ask_idle(origin, parts, receiver)):
            return idle
        connection = await self._connect(origin)
        connection.ask(parts, receiver)
        return connection

    def ask_idle(self, origin: Origin, parts: list[bytes], receiver: Receiver) -> Connection | None:
        """Send a request over a connection that is idle; returns None if there is none."""
        connection = self._take_idle(origin)
        if connection:
            connection.ask(parts, receiver)
        return connection

    async def close(self) -> None:
        """Close every connection. This cuts off answers in flight."""
        if self._looking:
            self._looking.cancel()
            self._looking = None
        for connection in tuple(self._open):
            connection.abort()
        await asyncio.sleep(0)  # the transports' own last step

    def _take_idle(self, origin: Origin) -> Connection | None:
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()  # the newest: older ones time out if few are needed
            if connection.is_usable:
                return connection
        return None

    async def _connect(self, origin: Origin) -> Connection:
        count = self._counts.get(origin, 0)
        if self._connections_max is not None and count >= self._connections_max:
            raise NoRoom(f"all {self._connections_max} connections are in use")
        loop = asyncio.get_running_loop()
        connection = Connection(self, origin)
        self._counts[origin] = count + 1
        self._being_made.add(connection)
        try:
            async with asyncio.timeout(CONNECT_S):
                if origin.socket_path:
                    await loop.create_unix_connection(lambda: connection, origin.socket_path)
                else:
                    tls = (self._tls or _trust()) if origin.is_tls else None
                    await loop.create_connection(lambda: connection, origin.host, origin.port, ssl=tls)
        except (OSError, TimeoutError, UnicodeError) as error:
            raise Unreachable(type(error).__name__) from None
        finally:
            if connection in self._being_made:  # never opened, so it never reports its own loss
                self.note_lost(connection)
        return connection

    # Called by connections.

    def note_open(self, connection: Connection) -> None:
        self._being_made.discard(connection)
        self._open.add(connection)
        if self._looking is None:
            self._look_again()

    def note_lost(self, connection: Connection) -> None:
        self._being_made.discard(connection)
        self._open.discard(connection)
        left = self._counts.get(connection.origin, 1) - 1
        if left > 0:
            self._counts[connection.origin] = left
        else:
            self._counts.pop(connection.origin, None)
            self._idle.pop(connection.origin, None)

    def take_back(self, connection: Connection) -> None:
        idle = self._idle.get(connection.origin)
        if idle is None:
            idle = self._idle[connection.origin] = []
        if len(idle) >= IDLE_MAX:
            connection.abort()
            return
        connection.idle_since_s = connection.loop.time()
        idle.append(connection)

    def _look_again(self) -> None:
        loop = asyncio.get_running_loop()
        self._looking = loop.call_later(LOOK_EVERY_S, self._look_at_clock)

    def _look_at_clock(self) -> None:
        """Check all connections with one timer: a timer for each wait would cost more than the request."""
        now_s = asyncio.get_running_loop().time()
        for connection in tuple(self._open):
            connection.look_at_clock(now_s)
        for idle in self._idle.values():
            # Ordered by when they became idle.
            while idle and now_s - idle[0].idle_since_s > IDLE_S:
                idle.pop(0).abort()
        self._looking = None
        if self._open:
            self._look_again()


@lru_cache(maxsize=1)
def _trust() -> ssl.SSLContext:
    """Return a TLS context with the certificate authorities that the system trusts."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context

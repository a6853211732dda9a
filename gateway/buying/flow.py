"""The buyer's end of the gateway's connections: it runs no further ahead of the gateway than a few kilobytes.

What the buyer has heard of an answer is paid for. What its caller never gets, for he has hung up, is the gateway's
own loss: so nothing is heard from a seller while the gateway, and behind it the caller, does not read.
"""

import asyncio
import socket

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

SOCKET_BYTES = 8192
"""What the system is asked to keep between the two processes; it keeps some two events, or seven small ones."""
HAS_GONE = "has_gone"
"""In a scope's state: tells whether the gateway has hung up, before the application hears of it."""


class GatewayProtocol(HttpToolsProtocol):
    """Waits with the next event until the system has taken the one before, and has little room for it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.set_write_buffer_limits(high=0)
        # It is not inherited: the sockets of a listener on a path begin with the system's own 200 KiB.
        connection: socket.socket = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        super().connection_made(transport)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][HAS_GONE] = self.transport.is_closing

"""Flow control between buyer and gateway: the buyer runs at most a few kilobytes ahead.

We pay for everything the buyer has received. If the caller has hung up, the gateway bears that cost. So the buyer
reads nothing from a seller while the gateway, and behind it the caller, does not read.
"""

import asyncio
import socket

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

SOCKET_BYTES = 8192
"""The send buffer we ask the system for; it holds about two events, or seven small ones."""
HAS_GONE = "has_gone"
"""A key in the scope's state: whether the gateway has hung up, known before the application is told."""


class GatewayProtocol(HttpToolsProtocol):
    """Send the next event only when the system has taken the previous one, with a small send buffer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.set_write_buffer_limits(high=0)
        # The option is not inherited: sockets of a Unix listener start with the system's own 200 KiB.
        connection: socket.socket = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        super().connection_made(transport)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][HAS_GONE] = self.transport.is_closing

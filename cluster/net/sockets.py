"""The TCP options of every connection of a cluster: no waiting for full packets, dead peers found in seconds."""

import socket

# Linux has all four; other systems keep their defaults.
_KEEPALIVE = (
    ("TCP_KEEPIDLE", 2),
    ("TCP_KEEPINTVL", 1),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", 5000),
)


def tune(connection: socket.socket) -> None:
    """Set the options. The kernel then detects within about five seconds that a machine has lost power."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

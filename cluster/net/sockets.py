"""What every TCP connection of a cluster is set to: no waiting for full packets, dead peers noticed in seconds."""

import socket

# Linux has all four; others keep their defaults.
_KEEPALIVE = (
    ("TCP_KEEPIDLE", 2),
    ("TCP_KEEPINTVL", 1),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", 5000),
)


def tune(connection: socket.socket) -> None:
    """A machine that lost its power sends no farewell: the kernel finds out within about five seconds."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

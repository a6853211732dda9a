"""A gateway's part in a ledger that several share in PostgreSQL. Only these import accounting.replication."""

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from sqlalchemy import URL
from sqlalchemy.orm import Session

from gateway.settings import Settings
from runtime.database import parse_dsn

if TYPE_CHECKING:
    from accounting.replication.shared import SharedLedger

_LOOPBACK = "127.0.0.1"
_ANY = ("0.0.0.0", "::")  # noqa: S104 - recognized, not bound
_POSTGRESQL_PORT = 5432


def open_shared(
    settings: Settings, write: Callable[[], Session], *, is_command: bool = False
) -> "SharedLedger | None":
    """Return this process's part in a shared ledger; None for a ledger in a file, which no other gateway uses.

    A command runs beside a gateway and must not take its port.
    """
    dsn = settings.database.dsn
    url = parse_dsn(dsn.get_secret_value()) if dsn else None
    if url is None or url.drivername == "sqlite":
        return None
    from accounting.replication.shared import SharedLedger

    own = settings.ledger.host or address_towards(url)
    reached_at = settings.ledger.address or (address_towards(url) if own in _ANY else own)
    if is_command:
        return SharedLedger(write, host=own, reached_at=own if own not in _ANY else address_towards(url))
    return SharedLedger(write, host=own, port=settings.ledger.port, reached_at=reached_at)


def address_towards(url: URL) -> str:
    """Return this machine's address on its route to the database; loopback if the database is local."""
    if not url.host:
        return _LOOPBACK
    try:
        family, kind, protocol, _, there = socket.getaddrinfo(
            url.host.split(",")[0], url.port or _POSTGRESQL_PORT, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as asking:
            # Nothing is sent: the system only chooses the route.
            asking.connect(there)
            return str(asking.getsockname()[0])
    except OSError:
        return _LOOPBACK

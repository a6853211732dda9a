"""A gateway's part in a ledger that several share in PostgreSQL. Only these import accounting.replication."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from sqlalchemy.orm import Session

from gateway.settings import Settings
from runtime.database import parse_dsn

if TYPE_CHECKING:
    from accounting.replication.shared import SharedLedger


def open_shared(settings: Settings, write: Callable[[], Session]) -> "SharedLedger | None":
    """Return this process's part in a shared ledger; None for a ledger in a file, which no other gateway uses."""
    dsn = settings.database.dsn
    if dsn is None or parse_dsn(dsn.get_secret_value()).drivername == "sqlite":
        return None
    from accounting.replication.shared import SharedLedger

    return SharedLedger(write)

"""Migrates tables in a separate process that ends.

Otherwise Alembic's 7 MB would stay in memory. The process (`gateway.migration_process`) gets the DSN on stdin,
because it may contain a password. It ends when stdin closes, so it never outlives the gateway.
"""

import msgspec

from gateway.database import MIGRATION_TIMEOUT_S, DatabaseUnusable, is_behind
from runtime.children import answer_of

_PATIENCE_S = 2.0 * MIGRATION_TIMEOUT_S


class Outcome(msgspec.Struct, frozen=True):
    """The process's last line on stdout, as JSON; `problem` is empty when the tables are up to date."""

    problem: str = ""


async def upgrade_in_process(dsn: str) -> None:
    """Upgrade the tables if they are behind. Cancelling the task ends the upgrade. Raises DatabaseUnusable."""
    if not is_behind(dsn):
        return
    try:
        answer, status = await answer_of("gateway.migration_process", msgspec.json.encode(dsn), _PATIENCE_S)
    except TimeoutError:
        raise DatabaseUnusable(f"the database was not upgraded within {_PATIENCE_S:.0f} s") from None
    problem = _read(answer).problem
    if problem or status:
        raise DatabaseUnusable(problem or f"the upgrade of the database ended with status {status}")


def _read(line: bytes) -> Outcome:
    try:
        return msgspec.json.decode(line, type=Outcome)
    except msgspec.DecodeError:
        return Outcome()

"""Helpers for commands on the database, with or without a running gateway."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy.orm import Session

from accounting.errors import AccountUnknown, AmountInvalid, LedgerError, PostingInvalid
from gateway.billing.ledger_service import LedgerService
from gateway.billing.shared import open_shared
from gateway.cli import output
from gateway.database import DatabaseUnusable, open_upgraded
from gateway.settings import Settings
from runtime.data_folder import DataFolder
from runtime.database import read_sessions, write_sessions
from runtime.settings import SettingsInvalid

Sessions = Callable[[], Session]
T = TypeVar("T")


@contextmanager
def open_store(settings: Settings, *, make: bool = False) -> Generator[tuple[Sessions, Sessions]]:
    """Yield (reading, writing) session factories with migrated tables; without `make` they must exist."""
    folder = DataFolder(settings.data_dir)
    dsn = settings.database.dsn
    if make:
        try:
            folder.prepare()
        except SettingsInvalid as error:
            output.fail(str(error))
    elif dsn is None and not folder.database.exists():
        output.fail(f"No ledger in {folder.path}. Is --data-dir correct?")
    try:
        engine = open_upgraded(dsn.get_secret_value() if dsn else folder.dsn)
    except DatabaseUnusable as error:
        output.fail(str(error))
    try:
        yield read_sessions(engine), write_sessions(engine)
    finally:
        engine.dispose()


@contextmanager
def saying_what_is_wrong() -> Generator[None]:
    """End the command with one line if the ledger rejects the request, or the request is invalid."""
    try:
        yield
    except (AccountUnknown, AmountInvalid, PostingInvalid) as error:
        output.fail(str(error), output.WRONG_USAGE)
    except LedgerError as error:
        output.fail(str(error))


def with_ledger(settings: Settings, act: Callable[[LedgerService], Awaitable[T]], *, make: bool = False) -> T:
    """Run `act` on the ledger; database rules protect it from concurrent writers."""

    async def run(read: Sessions, write: Sessions) -> T:
        ledger = LedgerService(read, write, open_shared(settings, write, is_command=True))
        ledger.start()
        try:
            return await act(ledger)
        finally:
            await ledger.stop()

    with open_store(settings, make=make) as (read, write):
        return asyncio.run(run(read, write))

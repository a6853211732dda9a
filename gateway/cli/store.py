"""The database of a data directory for commands, with or without a running gateway."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy.orm import Session

from gateway.admin.ledger_access import LedgerAccess
from gateway.billing.ledger_service import LedgerService
from gateway.billing.shared import open_shared
from gateway.cli import output
from gateway.database import DatabaseUnusable, open_upgraded
from gateway.identity.audit import Actor
from gateway.identity.directory import Directory
from gateway.identity.keys import Keys
from gateway.identity.secret import has_secret, open_secret
from gateway.settings import Settings
from runtime.data_folder import DataFolder
from runtime.database import read_sessions, write_sessions
from runtime.settings import SettingsInvalid

Sessions = Callable[[], Session]
T = TypeVar("T")

BY = Actor("machine", "command line")


@contextmanager
def open_store(settings: Settings, *, make: bool = False) -> Generator[tuple[Sessions, Sessions]]:
    """Yield (reading, writing) session factories with migrated tables; without `make` they must exist."""
    folder = DataFolder(settings.data_dir)
    dsn = settings.database.dsn
    try:
        if make:
            folder.prepare()
        elif dsn is None and not folder.database.exists():
            output.fail(f"No ledger in {folder.path}. Is --data-dir correct?")
        engine = open_upgraded(dsn.get_secret_value() if dsn else folder.dsn)
    except (DatabaseUnusable, SettingsInvalid) as error:
        output.fail(str(error))
    try:
        yield read_sessions(engine), write_sessions(engine)
    finally:
        engine.dispose()


@contextmanager
def open_directory(settings: Settings, *, make: bool = False, with_secret: bool = False) -> Generator[Directory]:
    """Open keys, users and limits; end the command with one line if they cannot be opened.

    With `make`, missing tables are created. Issuing a key needs the secret that keys are hashed with.
    """
    with open_store(settings, make=make) as (read, write):
        if with_secret and not make and not has_secret(settings.identity, settings.data_dir):
            output.fail(f"no keys in {settings.data_dir}. Is --data-dir correct?")
        secret = _secret(settings, write) if make or with_secret else b""
        yield _directory(settings, secret, read, write)


def run_on_ledger(settings: Settings, act: Callable[[LedgerAccess], Awaitable[T]], *, make: bool = False) -> T:
    """Run `act` on the ledger; database rules protect it from concurrent writers."""

    async def run(access: LedgerAccess) -> T:
        access.ledger.start()
        try:
            return await act(access)
        finally:
            await access.ledger.stop()

    with open_store(settings, make=make) as (read, write):
        ledger = LedgerService(read, write, open_shared(settings, write))
        return asyncio.run(run(LedgerAccess(ledger, _directory(settings, b"", read, write), BY)))


def _directory(settings: Settings, secret: bytes, read: Sessions, write: Sessions) -> Directory:
    return Directory.of(Keys(secret, read, write), settings.identity, settings.policy.lanes, read, write)


def _secret(settings: Settings, write: Sessions) -> bytes:
    try:
        return open_secret(settings.identity, settings.data_dir, write)
    except SettingsInvalid as error:
        output.fail(str(error), output.WRONG_USAGE)

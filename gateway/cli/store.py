"""Helpers for commands on the database, with or without a running gateway."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

from pydantic import ValidationError
from sqlalchemy.orm import Session

from accounting.errors import AccountUnknown, AmountInvalid, LedgerError, PostingInvalid
from gateway.admin.fields import refusal_of
from gateway.admin.ledger_access import LedgerAccess
from gateway.billing.ledger_service import LedgerService
from gateway.billing.shared import open_shared
from gateway.cli import output
from gateway.database import DatabaseUnusable, open_upgraded
from gateway.identity.directory import Directory
from gateway.identity.keys import Keys
from gateway.settings import Settings
from runtime.data_folder import DataFolder
from runtime.database import read_sessions, write_sessions
from runtime.errors import NotFound, RequestInvalid, ServiceError
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
def saying_what_is_wrong(user: str = "") -> Generator[None]:
    """End the command with one line if a request is invalid or the service layer rejects it.

    If `user` is unknown, the line says how to add them.
    """
    try:
        yield
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        output.fail(refusal_of(problem, problem["loc"]).message, output.WRONG_USAGE)
    except (AccountUnknown, AmountInvalid, PostingInvalid) as error:
        output.fail(str(error), output.WRONG_USAGE)
    except NotFound as error:
        remedy = f" Add the user with `millrace users add {user}`" if user else ""
        output.fail(error.message + remedy, output.WRONG_USAGE)
    except RequestInvalid as error:
        output.fail(error.message, output.WRONG_USAGE)
    except (LedgerError, ServiceError) as error:
        output.fail(str(error))


def with_ledger(settings: Settings, act: Callable[[LedgerAccess], Awaitable[T]], *, make: bool = False) -> T:
    """Run `act` on the ledger; database rules protect it from concurrent writers."""
    from gateway.cli.directory import BY

    async def run(access: LedgerAccess) -> T:
        access.ledger.start()
        try:
            return await act(access)
        finally:
            await access.ledger.stop()

    with open_store(settings, make=make) as (read, write):
        ledger = LedgerService(read, write, open_shared(settings, write, is_command=True))
        keys = Keys(b"", read, write)
        directory = Directory.of(keys, settings.identity, settings.policy.lanes, read, write)
        return asyncio.run(run(LedgerAccess(ledger, directory, BY)))

"""What commands need that work on the database, whether or not a gateway runs."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy.orm import Session

from accounting.errors import AccountUnknown, AmountInvalid, LedgerError, PostingInvalid
from gateway.cli import output
from gateway.data_folder import DataFolder
from gateway.database import DatabaseUnusable, open_upgraded, read_sessions, write_sessions
from gateway.records.books import Books
from gateway.records.shared import open_shared
from gateway.settings import Settings, SettingsInvalid

Sessions = Callable[[], Session]
T = TypeVar("T")


@contextmanager
def open_store(settings: Settings, *, make: bool = False) -> Generator[tuple[Sessions, Sessions]]:
    """(reading, writing) session factories, the tables up to date; only with `make` where there were none."""
    folder = DataFolder(settings.data_dir)
    dsn = settings.database.dsn
    if make:
        try:
            folder.prepare()
        except SettingsInvalid as error:
            output.fail(str(error))
    elif dsn is None and not folder.database.exists():
        output.fail(f"there are no books in {folder.path}: is it the --data-dir of a gateway?")
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
    """End the command with one line when the books refuse, or when it asks for what no books have."""
    try:
        yield
    except (AccountUnknown, AmountInvalid, PostingInvalid) as error:
        output.fail(str(error), output.WRONG_USAGE)
    except LedgerError as error:
        output.fail(str(error))


def with_books(settings: Settings, act: Callable[[Books], Awaitable[T]], *, make: bool = False) -> T:
    """Act on the books; the database's own rules hold whoever else writes to them."""

    async def run(read: Sessions, write: Sessions) -> T:
        books = Books(read, write, open_shared(settings, write, is_command=True))
        books.start()
        try:
            return await act(books)
        finally:
            await books.stop()

    with open_store(settings, make=make) as (read, write):
        return asyncio.run(run(read, write))

"""What commands need that work on the database, whether or not a gateway runs."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy.orm import Session

from accounting.errors import AccountUnknown, AmountInvalid, LedgerError, PostingInvalid
from gateway.books import Books
from gateway.cli import output
from gateway.data_folder import DataFolder
from gateway.database import DatabaseUnusable, open_upgraded, read_sessions, write_sessions
from gateway.identity.keys import Keys, load_secret
from gateway.settings import Settings, SettingsInvalid

WRONG_USAGE = 2

Sessions = Callable[[], Session]
T = TypeVar("T")


@contextmanager
def open_store(settings: Settings) -> Generator[tuple[Sessions, Sessions]]:
    """(reading, writing) session factories, the tables up to date."""
    folder = DataFolder(settings.data_dir)
    try:
        folder.prepare()
    except SettingsInvalid as error:
        output.fail(str(error))
    dsn = settings.database.dsn
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
        output.fail(str(error), WRONG_USAGE)
    except LedgerError as error:
        output.fail(str(error))


@contextmanager
def open_keys(settings: Settings) -> Generator[Keys]:
    with open_store(settings) as (read, write):
        yield Keys(load_secret(settings.data_dir), read, write)


def with_books(settings: Settings, act: Callable[[Books], Awaitable[T]]) -> T:
    """Act on the books; the database's own rules hold whoever else writes to them."""

    async def run(read: Sessions, write: Sessions) -> T:
        books = Books(read, write)
        books.start()
        try:
            return await act(books)
        finally:
            await books.stop()

    with open_store(settings) as (read, write):
        return asyncio.run(run(read, write))

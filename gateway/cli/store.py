"""What commands need that work on the database, whether or not a gateway runs."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy.orm import Session

from gateway.books import Books
from gateway.cli import output
from gateway.data_folder import DataFolder
from gateway.database import open_engine, read_sessions, upgrade, write_sessions
from gateway.identity.keys import Keys, load_secret
from gateway.settings import Settings, SettingsInvalid

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
    engine = open_engine(dsn.get_secret_value() if dsn else folder.dsn)
    try:
        upgrade(engine)
        yield read_sessions(engine), write_sessions(engine)
    finally:
        engine.dispose()


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

"""Books to write in: an engine, a running poster, and a clock that tests set."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from runtime.database import open_engine
from tests.accounting.books import LedgerService


@pytest.fixture
def engine(dsn: str) -> Iterator[Engine]:
    engine = open_engine(dsn)
    yield engine
    engine.dispose()


@pytest.fixture
def books(engine: Engine) -> Iterator[LedgerService]:
    with LedgerService(engine) as books:
        yield books

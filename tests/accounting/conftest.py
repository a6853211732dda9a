"""A ledger to write to: an engine, a running poster, and a clock that tests set."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from runtime.database import open_engine
from tests.accounting.ledgers import LedgerService


@pytest.fixture
def engine(dsn: str) -> Iterator[Engine]:
    engine = open_engine(dsn)
    yield engine
    engine.dispose()


@pytest.fixture
def ledger(engine: Engine) -> Iterator[LedgerService]:
    with LedgerService(engine) as ledger:
        yield ledger

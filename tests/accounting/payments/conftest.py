"""A house per test; on PostgreSQL too where runs are slow."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from tests.accounting.books import LedgerService
from tests.accounting.payments.house import Marketplace
from tests.databases import Kind


# What differs between databases is the ledger's, and tested there on both; payments only write through it.
@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    return kind


@pytest.fixture
def house(books: LedgerService, engine: Engine) -> Iterator[Marketplace]:
    with Marketplace(books, engine) as house:
        yield house

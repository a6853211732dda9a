"""A house per test, on each kind of database."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from tests.accounting.books import Books
from tests.accounting.payments.house import House


@pytest.fixture
def house(books: Books, engine: Engine) -> Iterator[House]:
    with House(books, engine) as house:
        yield house

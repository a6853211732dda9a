"""A marketplace per test; on PostgreSQL too in slow runs."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from tests.accounting.ledgers import LedgerService
from tests.accounting.payments.marketplace import Marketplace
from tests.databases import Kind


# What differs between databases is the ledger's, and tested there on both; payments only write through it.
@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    return kind


@pytest.fixture
def marketplace(ledger: LedgerService, engine: Engine) -> Iterator[Marketplace]:
    with Marketplace(ledger, engine) as marketplace:
        yield marketplace

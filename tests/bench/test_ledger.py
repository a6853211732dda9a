"""64 clients at one payer's credits: the benchmark runs, nobody waits for ever, and both ledgers add up then."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from sqlalchemy import Engine

from bench import contention
from bench.row_locking import RowLocking
from runtime.database import open_engine

CLIENTS = 64


@pytest.fixture
def engine(dsn: str) -> Iterator[Engine]:
    engine = open_engine(dsn)
    yield engine
    engine.dispose()


def test_64_clients_at_one_payer_and_one_fee_account(engine: Engine) -> None:
    with contention.our_purchases(engine) as purchase:
        assert contention.run(purchase, CLIENTS, 0.5, "ours").events >= 2 * CLIENTS
    contention.check(engine)
    if engine.dialect.name == "postgresql":
        with closing(RowLocking(engine, contention.CHARGE_NANO, contention.FEE_NANO)) as plain:
            assert contention.run(plain.purchase, CLIENTS, 0.1, "theirs").events >= 2 * CLIENTS
            assert plain.is_sound()
        with contention.leader_elsewhere(engine), contention.our_purchases(engine) as purchase:
            assert contention.run(purchase, CLIENTS, 0.1, "following").events >= 2 * CLIENTS
        contention.check(engine)

"""Who may spend, and from which funds. While the ledger is broken no user may, and a frozen user never."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from accounting.chart import pool_paid, user_paid, user_promo, user_receivable
from accounting.errors import DatabaseFailing, LedgerBroken
from accounting.ledger import health
from accounting.ledger.balances import balance
from accounting.ledger.health import BrokenRule
from accounting.payments.errors import PayerFrozen
from accounting.rules.held import CloudBill, Hold, Payer
from accounting.spending.credit_grants import CreditGrant
from accounting.spending.leases import Leases
from gateway.billing import inspection
from gateway.billing.batch_settlement import Settler
from gateway.billing.ledger_service import LedgerService
from gateway.billing.spool import Settlement
from runtime.database import open_engine, read_sessions, write_sessions
from tests.accounting.ledgers import usage

pytestmark = pytest.mark.anyio

ANN = Payer("ann", "lab")
HOUR_NS = 3600 * 10**9

T = TypeVar("T")


@pytest.fixture
def engine(dsn: str) -> Iterator[Engine]:
    engine = open_engine(dsn)
    yield engine
    engine.dispose()


@pytest.fixture
async def ledger(engine: Engine) -> AsyncIterator[LedgerService]:
    ledger = LedgerService(read_sessions(engine), write_sessions(engine))
    ledger.start()
    yield ledger
    await ledger.stop()


def unguarded(engine: Engine, statement: str) -> None:
    """Change the past, as the database's owner can."""
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.execute(text("DROP TRIGGER IF EXISTS account_fixed"))
        else:
            connection.execute(text("ALTER TABLE account DISABLE TRIGGER account_fixed"))
        connection.execute(text(statement))


async def test_every_rule_is_looked_at_once_for_many_who_ask(
    ledger: LedgerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    look, may_end = health.findings, threading.Event()

    def counted(*arguments: Any, **options: Any) -> list[BrokenRule]:
        looks.append(1)
        may_end.wait(60)
        return look(*arguments, **options)

    monkeypatch.setattr(health, "findings", counted)
    monkeypatch.setattr(inspection, "PATIENCE_S", 0.1)
    monkeypatch.setattr(inspection, "FRESH_S", 3600.0)
    with pytest.raises(DatabaseFailing, match="try again"):
        await ledger.inspection.latest()
    asking = [asyncio.create_task(ledger.inspection.latest()) for _ in range(5)]
    await asyncio.gather(*asking, return_exceptions=True)
    may_end.set()
    monkeypatch.setattr(inspection, "PATIENCE_S", 60.0)
    assert (await ledger.inspection.latest())[0] == ()
    assert (await ledger.inspection.latest())[1] < inspection.FRESH_S
    assert len(looks) == 1


async def test_a_broken_ledger_spends_nothing_until_it_is_mended(ledger: LedgerService, engine: Engine) -> None:
    await ledger.credit("c1", "ann", 1000, "test")
    assert ledger.inspection.by_rule() == {}
    assert ledger.inspection.age_s()[()] >= 0
    await ledger.hold("r1", ANN, 100)
    unguarded(engine, "UPDATE account SET credits_posted = credits_posted + 1 WHERE code = 'user:ann:paid'")
    found = await ledger.findings(deep=True)
    assert "debits_equal_credits" in {finding.rule for finding in found}
    with pytest.raises(LedgerBroken) as refused:
        await ledger.hold("r2", ANN, 100)
    assert refused.value.rule in str(refused.value)
    assert ledger.inspection.by_rule()[refused.value.rule,] == 1
    assert (await ledger.balance("ann")).posted_nano == 1001
    assert refused.value.rule in (await ledger.condition()).broken
    unguarded(engine, "UPDATE account SET credits_posted = credits_posted - 1 WHERE code = 'user:ann:paid'")
    assert await ledger.findings(deep=True) == []
    assert not any(ledger.inspection.by_rule().values())
    assert (await ledger.hold("r3", ANN, 100)).amount_nano == 100


async def test_a_frozen_user_spends_nothing(ledger: LedgerService) -> None:
    for user in ("ann", "bob"):
        await ledger.credit(f"c-{user}", user, 1000, "test")
    frozen = {"ann": "dispute dp_1"}
    ledger.frozen_why = frozen.get
    with pytest.raises(PayerFrozen, match="dispute dp_1"):
        await ledger.hold("r1", ANN, 100)
    await ledger.hold("r2", Payer("bob", "lab"), 100)
    frozen.clear()
    await ledger.hold("r3", ANN, 100)


async def given(ledger: LedgerService) -> tuple[str, str, str]:
    """A hundred in a grant, in the pool, and of one's own."""
    await ledger.grant(CreditGrant("welcome", "ann", 100, time.time_ns() + HOUR_NS))
    await ledger.credit_pool("c1", "lab", 100, "test")
    await ledger.credit("c2", "ann", 100, "test")
    return user_promo("ann", "welcome"), pool_paid("lab"), user_paid("ann")


async def posted(ledger: LedgerService, *accounts: str) -> list[int]:
    return await ledger.look(lambda session: [balance(session, account).posted_nano for account in accounts])


def settler_after_a_crash(ledger: LedgerService, engine: Engine) -> Settler:
    """Of the next process: it has none of the leases of the one before."""

    def read(query: Callable[[Session], T]) -> T:
        with read_sessions(engine)() as session:
            return query(session)

    return Settler(ledger.writer, Leases(ledger.writer, read_sessions(engine)), read)


def settlement(hold: Hold, charge: int) -> Settlement:
    record = usage(hold.request_id, lane="cloud", user_id="ann", completion_tokens=1)
    return Settlement(record, hold, CloudBill("acme", charge, charge))


async def test_what_a_crash_left_is_paid_out_of_all_parts_of_its_lease(
    ledger: LedgerService, engine: Engine
) -> None:
    accounts = await given(ledger)
    hold = await ledger.hold("r1", ANN, 280)
    settler = settler_after_a_crash(ledger, engine)
    for _ in range(2):
        (settled,) = settler.settle([settlement(hold, 250)])
        assert isinstance(settled, int)
        assert await posted(ledger, *accounts) == [0, 0, 50]


async def test_what_the_ledger_knows_no_lease_of_is_owed(ledger: LedgerService, engine: Engine) -> None:
    """The database may be a backup of the day before."""
    hold = Hold("r1", "ann", 100, 10**6, time.time_ns(), "lost", "lab")
    (settled,) = settler_after_a_crash(ledger, engine).settle([settlement(hold, 60)])
    assert isinstance(settled, int)
    assert await posted(ledger, user_receivable("ann")) == [60]


async def test_what_is_settled_after_its_lease_takes_what_there_is_and_the_rest_is_owed(
    ledger: LedgerService, engine: Engine
) -> None:
    accounts = await given(ledger)
    first, second = await ledger.hold("r1", ANN, 150), await ledger.hold("r2", ANN, 150)
    settler = settler_after_a_crash(ledger, engine)
    settler.settle([settlement(first, 150)])
    other = await ledger.hold("r3", Payer("bob", "lab"), 40)
    (settled,) = settler.settle([settlement(second, 150)])
    assert isinstance(settled, int)
    assert await posted(ledger, *accounts, user_receivable("ann")) == [0, 40, 0, 40]
    assert settler.settle([settlement(second, 150)]) == [None]
    assert other.amount_nano == 40
    await ledger.credit("c9", "ann", 100, "what was owed is paid first")
    assert await posted(ledger, user_paid("ann"), user_receivable("ann")) == [60, 0]

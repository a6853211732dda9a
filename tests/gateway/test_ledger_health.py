"""The ledger's rules are checked while credits are spent; what cannot be mended is accepted."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from sqlalchemy import Engine, text

from accounting.errors import DatabaseFailing, LedgerBroken
from accounting.ledger.accepted import accept
from accounting.ledger.health import breaches
from accounting.ledger.postings import Posting
from accounting.rules.corrections import correction
from accounting.rules.held import Payer
from gateway.billing import inspection
from gateway.billing.ledger_service import LedgerService
from runtime.database import open_engine, read_sessions, write_sessions
from tests.accounting.ledgers import usage

pytestmark = pytest.mark.anyio

ANN = Payer("ann", "lab")
PATIENCE_S = 60.0


@pytest.fixture
def engine(dsn: str) -> Iterator[Engine]:
    engine = open_engine(dsn)
    yield engine
    engine.dispose()


@pytest.fixture
async def ledger(engine: Engine) -> AsyncIterator[LedgerService]:
    ledger = LedgerService(read_sessions(engine), write_sessions(engine))
    ledger.start()
    await ledger.credit("c1", "ann", 1000, "test")
    yield ledger
    await ledger.stop()


def forge(engine: Engine, nano: int) -> None:
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.execute(text("DROP TRIGGER IF EXISTS account_fixed"))
        else:
            connection.execute(text("ALTER TABLE account DISABLE TRIGGER account_fixed"))
        change = f"UPDATE account SET credits_posted = credits_posted + {nano} WHERE code = 'user:ann:paid'"
        connection.execute(text(change))


async def spends(ledger: LedgerService, request_id: str) -> bool:
    try:
        await ledger.hold(request_id, ANN, 1)
    except LedgerBroken:
        return False
    return True


async def becomes(ledger: LedgerService, wanted: bool) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await spends(ledger, "probe") is not wanted:
            await asyncio.sleep(0.02)


async def test_a_rule_that_breaks_meanwhile_stops_spending_until_every_rule_holds(
    ledger: LedgerService, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "GLANCE_EVERY_S", 0.05)
    ledger.inspect()
    async with asyncio.timeout(PATIENCE_S):
        while not ledger.inspection.by_rule():
            await asyncio.sleep(0.02)
    assert await spends(ledger, "r1")
    forge(engine, 5)
    await becomes(ledger, wanted=False)
    forge(engine, -5)
    await ledger.findings(deep=True)
    await becomes(ledger, wanted=True)


async def test_nothing_is_spent_before_the_first_glance(ledger: LedgerService, engine: Engine) -> None:
    forge(engine, 5)
    ledger.inspect()
    assert not await spends(ledger, "r1")


async def test_a_ledger_that_cannot_be_looked_at_grants_nothing(
    ledger: LedgerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away() -> list[object]:
        raise DatabaseFailing("away")

    monkeypatch.setattr(inspection, "GLANCE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(ledger.inspection, "glance", away)
    monkeypatch.setattr(ledger.inspection, "inspect", lambda **_: away())
    ledger.inspect()
    with pytest.raises(DatabaseFailing, match="checked"):
        await ledger.hold("r1", ANN, 1)


async def test_what_an_event_broke_is_accepted_by_name_and_stays_in_sight(
    ledger: LedgerService, engine: Engine
) -> None:
    for request in ("r8", "r9"):
        await ledger.book(Posting(f"use:{request}", "use", request, usages=(usage(request, charge_nano=5),)))
    await ledger.findings(deep=True)
    assert not await spends(ledger, "r1")
    now_ns = time.time_ns()
    assert sorted(await ledger.look(lambda session: breaches(session, "usage_is_charged", now_ns))) == ["r8", "r9"]
    for request, spent in (("r8", False), ("r9", True)):
        with write_sessions(engine)() as session, session.begin():
            assert accept(session, "usage_is_charged", request, "a test wrote it", now_ns)
            assert not accept(session, "usage_is_charged", request, "again", now_ns)
        found = await ledger.findings(deep=True)
        assert await spends(ledger, f"after-{request}") is spent
    (finding,) = found
    assert (finding.rule, finding.is_accepted, len(finding.where)) == ("usage_is_charged", True, 2)
    assert (await ledger.condition()).broken == ()
    await ledger.book(correction("incident-7", "user:ann:paid", "asset:bank", 5))
    assert not [each for each in await ledger.findings(deep=True) if not each.is_accepted]

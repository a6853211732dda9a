"""What a request leaves behind, whatever the database and the reaper do: booked once, charged once, never lost."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from accounting.chart import supply, user_paid, user_receivable
from accounting.metering.prices import PricedModel
from accounting.money import Price
from accounting.payments.errors import PayerFrozen
from accounting.rules.held import Hold, Payer
from accounting.spending.lease import LEASE_NS
from accounting.tables import event_table, usage_table
from gateway.billing.bookkeeper import Bookkeeper
from gateway.billing.finished_request import Ending
from gateway.billing.ledger_service import LedgerService
from gateway.billing.request_log import RequestLog
from gateway.billing.spool import Settlement, Spool
from gateway.dialects.openai import read_request
from gateway.identity.caller import Caller
from gateway.lanes.base import Call, Meter, Offer
from gateway.metrics.metrics import Metrics
from gateway.requests.context import Asked, RequestContext
from gateway.requests.settlement import settle_request
from gateway.routing.decision import Decision
from runtime.database import open_engine, read_sessions, write_sessions
from tests.accounting.ledgers import LedgerService as OtherGateway
from tests.accounting.ledgers import usage

CALLER = Caller("key-1", "mr-1", "ann", "lab", frozenset({"cloud"}))
PRICE = PricedModel("cloud", "fast", "list-7", Price(0, 0, 10**9), "acme")
CLOUD = Offer("cloud", "fast", "fast", price=PRICE)
POOL = Offer("pool", "desk", "fast")
RAW = b'{"model": "fast", "messages": [{"role": "user", "content": "Hi"}]}'
DONE, FAILED = Ending(200, "complete"), Ending(502, "failed")
CREDIT, HELD, TOKENS, CHARGE = 10_000, 8_000, 5, 5_000


class Database:
    """A real database that can be away, or keep its writer waiting."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.is_away = False
        self.answers = threading.Event()
        self.answers.set()
        self._write = write_sessions(engine)

    def write(self) -> Session:
        assert self.answers.wait(30)
        if self.is_away:
            raise OperationalError("connect", None, Exception("nobody there"))
        return self._write()

    def read(self) -> Session:
        if self.is_away:
            raise OperationalError("connect", None, Exception("nobody there"))
        return read_sessions(self.engine)()


@pytest.fixture
def database(dsn: str) -> Iterator[Database]:
    engine = open_engine(dsn)
    yield Database(engine)
    engine.dispose()


@asynccontextmanager
async def keeping(database: Database, folder: Path) -> AsyncIterator[tuple[LedgerService, Bookkeeper]]:
    ledger = LedgerService(database.read, database.write)
    log = RequestLog(database.read, database.write)
    spool = Spool(folder / "unbooked.jsonl")
    bookkeeper = Bookkeeper(ledger, log, Metrics.create(), spool)
    ledger.start()
    log.start()
    bookkeeper.start()
    try:
        yield ledger, bookkeeper
    finally:
        await bookkeeper.stop()
        log.stop()
        await ledger.stop()


def context(offer: Offer, hold: Hold | None = None, request_id: str = "req_1") -> RequestContext:
    call = Call(request_id, "chat", read_request("chat", RAW), RAW)
    decision, began_s = Decision((), (), "test"), time.perf_counter() - 0.5
    return RequestContext(call, CALLER, time.time_ns(), began_s, decision, asked=Asked(offer), hold=hold)


def said(tokens: int = TOKENS) -> Meter:
    return Meter(prompt_tokens=3, completion_tokens=tokens, source="upstream", is_complete=True)


def usage_rows(database: Database) -> dict[str, tuple[str, int, int]]:
    table = usage_table.c
    with read_sessions(database.engine)() as session:
        found = session.execute(select(table.request_id, table.lane, table.charge_nano, table.compute_nano))
        return {request_id: (lane, charge, compute) for request_id, lane, charge, compute in found}


def kinds_of_events(database: Database) -> list[str]:
    with read_sessions(database.engine)() as session:
        return list(session.scalars(select(event_table.c.kind).order_by(event_table.c.seq)))


def standing(database: Database, code: str) -> int:
    return OtherGateway(database.engine).balance(code).posted_nano


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not check():
            await asyncio.sleep(0.02)


async def held_by(ledger: LedgerService, request_id: str = "req_1") -> Hold:
    await ledger.credit(request_id, "ann", CREDIT, "test")
    return await ledger.hold(request_id, Payer("ann"), HELD)


@pytest.mark.anyio
async def test_a_short_outage_loses_nothing(database: Database, tmp_path: Path) -> None:
    async with keeping(database, tmp_path) as (ledger, bookkeeper):
        held = await held_by(ledger)
        database.is_away = True
        settle_request(bookkeeper, context(CLOUD, held), said(), DONE)
        await asyncio.sleep(0.8)
        assert usage_rows(database) == {}
        database.is_away = False
        await until(lambda: bool(usage_rows(database)))
    assert usage_rows(database) == {"req_1": ("cloud", CHARGE, 0)}
    assert standing(database, user_paid("ann")) == CREDIT - CHARGE
    assert Spool(tmp_path / "unbooked.jsonl").read() == []


@pytest.mark.anyio
async def test_what_an_outage_outlasts_is_booked_at_the_next_start(database: Database, tmp_path: Path) -> None:
    async with keeping(database, tmp_path) as (ledger, bookkeeper):
        held = await held_by(ledger)
        database.is_away = True
        settle_request(bookkeeper, context(CLOUD, held), said(), DONE)
        settle_request(bookkeeper, context(POOL, request_id="req_2"), said(), DONE)
        await asyncio.sleep(0)
    settle_request(bookkeeper, context(POOL, request_id="req_3"), said(), FAILED)
    spooled = tmp_path / "unbooked.jsonl"
    assert spooled.stat().st_mode & 0o077 == 0
    kept = [json.loads(line) for line in spooled.read_text().splitlines()]
    assert {line["usage"]["request_id"] for line in kept} == {"req_1", "req_2", "req_3"}
    database.is_away = False
    async with keeping(database, tmp_path):
        await until(lambda: not spooled.exists())
    rows = usage_rows(database)
    assert rows["req_1"] == ("cloud", CHARGE, 0)
    assert rows["req_2"][2] > 0
    assert rows["req_3"][2] == 0
    assert standing(database, user_paid("ann")) == CREDIT - CHARGE
    assert OtherGateway(database.engine).findings() == []


@pytest.mark.anyio
async def test_a_hold_that_nobody_waits_for_any_more_is_given_back(database: Database, tmp_path: Path) -> None:
    async with keeping(database, tmp_path) as (ledger, _):
        await ledger.credit("c1", "ann", CREDIT, "test")
        database.answers.clear()
        waiting = asyncio.create_task(ledger.hold("req_1", Payer("ann"), HELD))
        await asyncio.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        database.answers.set()
        await until(lambda: kinds_of_events(database) == ["credit", "lease"])
    assert OtherGateway(database.engine).balance(user_paid("ann")).available_nano == CREDIT


@pytest.mark.anyio
async def test_own_machines_that_take_over_are_booked_and_nothing_is_charged(
    database: Database, tmp_path: Path
) -> None:
    async with keeping(database, tmp_path) as (ledger, bookkeeper):
        settle_request(bookkeeper, context(POOL, await held_by(ledger)), said(), DONE)
    lane, charge_nano, compute_nano = usage_rows(database)["req_1"]
    assert (lane, charge_nano) == ("pool", 0)
    assert standing(database, supply("pool")) == compute_nano > 0
    assert OtherGateway(database.engine).balance(user_paid("ann")).available_nano == CREDIT


@pytest.mark.anyio
@pytest.mark.parametrize(("credits_left", "owed"), [(CREDIT, 0), (1_000, CHARGE - 1_000)])
async def test_after_the_reaper_credits_pay_first_and_the_rest_is_owed(
    database: Database, tmp_path: Path, credits_left: int, owed: int
) -> None:
    async with keeping(database, tmp_path) as (ledger, bookkeeper):
        held, silent = await held_by(ledger), await held_by(ledger, "req_2")
        with OtherGateway(database.engine) as other:
            other.now_ns = time.time_ns() + LEASE_NS
            assert other.reaper.sweep() == 1
            other.hold("req_3", "ann", 2 * CREDIT - credits_left)
        settle_request(bookkeeper, context(CLOUD, held), said(), DONE)
        settle_request(bookkeeper, context(CLOUD, silent, "req_2"), said(0), FAILED)
    assert usage_rows(database) == {"req_1": ("cloud", CHARGE, 0), "req_2": ("cloud", 0, 0)}
    assert standing(database, user_receivable("ann")) == owed
    assert OtherGateway(database.engine).findings() == []


@pytest.mark.anyio
async def test_the_price_list_and_what_providers_miscount_are_kept_sane(
    database: Database, tmp_path: Path
) -> None:
    meter = said()
    meter.prompt_tokens, meter.cached_tokens = 2, 9
    async with keeping(database, tmp_path) as (ledger, bookkeeper):
        settle_request(bookkeeper, context(CLOUD, await held_by(ledger)), meter, DONE)
    with read_sessions(database.engine)() as session:
        kept = session.scalars(select(event_table.c.meta).where(event_table.c.kind == "lease")).all()
    assert [meta for meta in kept if meta != "{}"] == [f'{{"price":"{PRICE.id}"}}']


@pytest.mark.anyio
async def test_what_no_ledger_can_hold_keeps_nothing_aside(database: Database, tmp_path: Path) -> None:
    """A provider counts nonsense, at a price with which it comes to more than any event may move."""
    dear = replace(CLOUD, price=replace(PRICE, price=Price(0, 0, 2 * 10**12)))
    async with keeping(database, tmp_path) as (ledger, bookkeeper):
        settle_request(bookkeeper, context(dear, await held_by(ledger)), said(10**9), DONE)
        assert (await ledger.hold("req_2", Payer("ann"), CREDIT)).amount_nano == CREDIT


@pytest.mark.anyio
async def test_who_is_frozen_while_the_ledger_is_waited_for_gets_nothing(
    database: Database, tmp_path: Path
) -> None:
    async with keeping(database, tmp_path) as (ledger, _):
        await ledger.credit("c1", "ann", CREDIT, "test")
        database.answers.clear()
        asking = asyncio.create_task(ledger.hold("req_1", Payer("ann"), HELD))
        await until(lambda: ledger.leases._draws == 1)
        ledger.frozen_why = lambda _: "dispute d1"
        database.answers.set()
        with pytest.raises(PayerFrozen):
            await asking
        ledger.frozen_why = lambda _: None
        assert (await ledger.hold("req_2", Payer("ann"), CREDIT)).amount_nano == CREDIT


@pytest.mark.anyio
async def test_a_broken_rule_and_a_database_that_is_away_show(database: Database, tmp_path: Path) -> None:
    async with keeping(database, tmp_path) as (ledger, _):
        await ledger.credit("c1", "ann", CREDIT, "test")
        with database.engine.begin() as connection:
            of = "" if database.engine.dialect.name == "sqlite" else " ON account"
            connection.execute(text(f"DROP TRIGGER account_fixed{of}"))
            connection.execute(
                text("UPDATE account SET credits_posted = credits_posted + 5 WHERE kind = 'liability'")
            )
        assert (await ledger.condition()).broken == ("debits_equal_credits", "equation")
    database.is_away = True
    async with keeping(database, tmp_path) as (ledger, _):
        assert not (await ledger.condition()).is_reachable


@pytest.mark.anyio
async def test_what_waits_while_the_ledger_hangs_is_bounded_and_the_rest_is_on_disk(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.billing.settlement_worker.WAITING_MAX", 20)
    async with keeping(database, tmp_path) as (_, bookkeeper):
        database.answers.clear()
        for number in range(60):
            settle_request(bookkeeper, context(POOL, request_id=f"req_{number}"), said(), DONE)
        # The settlement thread may have taken one batch out of the queue before it was full.
        assert 20 <= bookkeeper.waiting <= 40
        spooled = (tmp_path / "unbooked.jsonl").read_text().splitlines()
        assert len(spooled) == 60 - bookkeeper.waiting
        database.answers.set()
    async with keeping(database, tmp_path):
        await until(lambda: len(usage_rows(database)) == 60)


@pytest.mark.anyio
async def test_many_free_requests_are_few_events_and_each_counts_once(database: Database, tmp_path: Path) -> None:
    """Although some end twice, in one batch and in another, and others come again out of the spool."""
    spool = Spool(tmp_path / "unbooked.jsonl")
    spool.add_all([Settlement(usage(f"req_{n}", lane="pool", compute_nano=10)) for n in (3, 4, 700)])
    async with keeping(database, tmp_path) as (_, bookkeeper):
        for number in (*range(600), 5, 6):
            settle_request(bookkeeper, context(POOL, request_id=f"req_{number}"), said(), DONE)
        await until(lambda: len(usage_rows(database)) == 601)
        settle_request(bookkeeper, context(POOL, request_id="req_7"), said(), DONE)
        settle_request(bookkeeper, context(POOL, request_id="x" * 600), said(), DONE)
        settle_request(bookkeeper, context(POOL, request_id="req_701"), said(), DONE)
    rows = usage_rows(database)
    assert len(rows) == 602
    assert standing(database, supply("pool")) == sum(compute for _, _, compute in rows.values())
    assert len(kinds_of_events(database)) < 10
    assert spool.read() == []
    assert OtherGateway(database.engine).findings() == []


def test_a_spool_is_bounded_and_survives_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "unbooked.jsonl"
    first, second = (Settlement(usage(f"r{n}")) for n in (1, 2))
    spool = Spool(path, bytes_max=1500)
    assert spool.add_all([first])
    path.write_bytes(path.read_bytes() + b'{"usage": {"requ')
    assert spool.add_all([second])
    while spool.add_all([second]):
        assert path.stat().st_size <= 1500
    entries = spool.read()
    assert [entry.settlement for entry in entries[:2]] == [first, second]
    spool.remove({entry.line for entry in entries})
    assert path.read_bytes() == b'{"usage": {"requ\n'

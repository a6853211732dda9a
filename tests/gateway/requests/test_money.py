"""Who pays for a request. With a broken ledger no paid request is sent; own machines still answer."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from accounting.chart import pool_paid
from accounting.ledger.balances import balance
from gateway.identity.caller import HOME
from runtime.data_folder import DataFolder
from tests.gateway.http.edges import Answered, Edge, Writer, backend, until, whole
from tests.gateway.requests.roads import ANSWER, receive, road, send, with_paid_lane
from tests.gateway.telemetry.test_scrape import scrape

pytestmark = pytest.mark.anyio

ONE_MORE = "UPDATE account SET credits_posted = credits_posted + ? WHERE code = 'user:owner:paid'"


async def answering(_: bytes, writer: Writer) -> None:
    writer.write(whole(ANSWER))


async def ask(running: Edge, model: str) -> Answered:
    return await receive(await send(running, model=model))


def tamper(folder: Path, change: int) -> None:
    with closing(sqlite3.connect(DataFolder(folder).database)) as connection, connection:
        connection.execute("DROP TRIGGER IF EXISTS account_fixed")
        connection.execute(ONE_MORE, (change,))


async def test_paid_lanes_wait_until_the_ledger_is_in_order(tmp_path: Path) -> None:
    async with (
        backend(answering) as own,
        backend(answering) as paid,
        road(tmp_path, own.base_url) as started,
        with_paid_lane(started, paid.base_url, "paid") as running,
    ):
        ledger = running.services.ledger
        assert (await ask(running, "paid")).status == 200
        tamper(tmp_path, 1)
        assert await ledger.findings(deep=True)
        refused = await ask(running, "paid")
        assert (refused.status, refused.error["code"]) == (503, "ledger_broken")
        assert "checked the ledger" in refused.error["message"]  # which rule it is stays with the operators
        assert (await ask(running, "m")).status == 200
        _, found = await scrape(running)
        assert found["millrace_ledger_broken_rules", ("debits_equal_credits",)] == 1
        tamper(tmp_path, -1)
        assert await ledger.findings(deep=True) == []
        assert (await ask(running, "paid")).status == 200


async def test_a_user_whose_payments_are_disputed_has_own_machines_only(tmp_path: Path) -> None:
    async with (
        backend(answering) as own,
        backend(answering) as paid,
        road(tmp_path, own.base_url) as started,
        with_paid_lane(started, paid.base_url, "paid") as running,
    ):
        frozen = {"owner": "dispute dp_1"}
        running.services.ledger.frozen_why = frozen.get
        refused = await ask(running, "paid")
        assert (refused.status, refused.error["code"]) == (403, "payments_frozen")
        assert (await ask(running, "m")).status == 200
        frozen.clear()
        assert (await ask(running, "paid")).status == 200


async def test_the_organization_s_pool_pays_before_its_users_do(tmp_path: Path) -> None:
    async with (
        backend(answering) as own,
        backend(answering) as paid,
        road(tmp_path, own.base_url) as started,
        with_paid_lane(started, paid.base_url, "paid") as running,
    ):
        ledger = running.services.ledger
        await ledger.credit_pool("p1", HOME, 10**6, "test")
        before = await ledger.balance("owner")
        assert (await ask(running, "paid")).status == 200
        await until(lambda: not running.services.bookkeeper.waiting)
        pool = await ledger.look(lambda session: balance(session, pool_paid(HOME)))
        assert pool.posted_nano < 10**6
        assert (await ledger.balance("owner")).posted_nano == before.posted_nano

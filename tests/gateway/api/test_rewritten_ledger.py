"""A hand in the database, without the key, rewrites the past under a running gateway, which neither signs it nor
spends from it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest
from sqlalchemy import Connection, text
from typer.testing import CliRunner, Result

from accounting.errors import LedgerBroken
from accounting.ledger.postings import request_hash
from accounting.rules import grants
from accounting.rules.held import Payer
from gateway.billing import inspection
from gateway.cli.main import app
from runtime.data_folder import DataFolder
from runtime.database import open_engine
from tests.gateway.api.conftest import Serve, Served

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "CONDITION_S", 0.1)


@pytest.fixture
async def served(serve: Serve, dsn: str) -> AsyncIterator[Served]:
    """With two credits, each in a block of its own."""
    async with serve(dsn) as served:
        for number in (1, 2):
            await served.services.ledger.credit(f"c{number}", "owner", 5, "test")
            await until(served, lambda told, n=number: (told["ledger_checkpoint"] or "").startswith(f"{n}:"))
        yield served


async def until(served: Served, is_so: Any) -> dict[str, Any]:
    """What /readyz says, as soon as it says so."""
    told: dict[str, Any] = {}
    with anyio.fail_after(PATIENCE_S):
        while not told or not is_so(told):
            await anyio.sleep(0.05)
            told = (await served.machine.get("/readyz")).json()
    return told


def blocks(told: dict[str, Any]) -> int:
    """How many the newest checkpoint counts."""
    return int((told["ledger_checkpoint"] or "0:").partition(":")[0])


async def verdict(served: Served) -> dict[str, Any]:
    answer = await served.machine.get("/accounting/v1/ledger/verify")
    return dict(answer.raise_for_status().json())


async def may_spend(served: Served) -> bool:
    try:
        await served.services.ledger.hold("probe", Payer("owner", ""), 1)
    except LedgerBroken:
        return False
    return True


async def until_spending(served: Served, wanted: bool) -> None:
    with anyio.fail_after(PATIENCE_S):
        while await may_spend(served) is not wanted:
            await anyio.sleep(0.05)


async def until_in_order(served: Served) -> None:
    """Every rule is looked at again and again: by itself the gateway does so once a minute."""
    with anyio.fail_after(PATIENCE_S):
        while [each for each in await served.services.ledger.findings(deep=True) if not each.is_accepted]:
            await anyio.sleep(0.2)
    await until_spending(served, wanted=True)


@contextmanager
def hand(dsn: str) -> Iterator[Connection]:
    """With the right to everything in the database, and to nothing else."""
    engine = open_engine(dsn)
    triggers: list[str] = []
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("COMMIT")
            for pragma in ("foreign_keys = OFF", "query_only = OFF"):
                connection.exec_driver_sql(f"PRAGMA {pragma}")
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            found = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").all()
            for name, statement in found:
                connection.exec_driver_sql(f"DROP TRIGGER {name}")
                triggers.append(statement)
        else:
            connection.exec_driver_sql("SET session_replication_role = replica")
        yield connection
        for statement in triggers:
            connection.exec_driver_sql(statement)
        connection.commit()
    engine.dispose()


def raise_credit(connection: Connection, credit_id: str, *, asked: bool) -> None:
    """By a thousand, with all totals; with `asked` also what the event keeps of what was asked for."""
    key = f"credit:{credit_id}"
    seq = connection.scalar(text("SELECT seq FROM event WHERE idem_key = :key"), {"key": key})
    assert seq
    for statement in (
        "UPDATE transfer SET amount = amount + 1000 WHERE event_seq = :seq",
        "UPDATE account SET credits_posted = credits_posted + 1000"
        " WHERE id = (SELECT credit FROM transfer WHERE event_seq = :seq)",
        "UPDATE account SET debits_posted = debits_posted + 1000"
        " WHERE id = (SELECT debit FROM transfer WHERE event_seq = :seq)",
    ):
        connection.execute(text(statement), {"seq": seq})
    if asked:
        fresh = request_hash(grants.manual_credit(credit_id, "owner", 1005, "test"))
        connection.execute(text("UPDATE event SET req_hash = :hash WHERE seq = :seq"), {"hash": fresh, "seq": seq})


def millrace(served: Served, dsn: str, *words: str) -> Result:
    folder = str(served.services.settings.data_dir)
    return CliRunner().invoke(app, [*words, "--data-dir", folder], env={"MILLRACE_DATABASE__DSN": dsn})


@pytest.mark.parametrize(
    "taken", ["DELETE FROM block WHERE n > 1", "DELETE FROM block", "DELETE FROM block; DELETE FROM block_key"]
)
async def test_a_past_that_was_rewritten_is_not_signed(served: Served, dsn: str, taken: str, serve: Serve) -> None:
    checkpoint = served.services.ledger.checkpoint
    assert await may_spend(served)
    with hand(dsn) as connection:
        raise_credit(connection, "c2", asked=True)
        for statement in taken.split(";"):
            connection.exec_driver_sql(statement)
    told = await until(served, lambda told: "broken: blocks_kept" in told["ledger"])
    assert told["ledger_checkpoint"] == str(checkpoint)
    await until_spending(served, wanted=False)
    await served.services.ledger.credit("c3", "owner", 5, "test")
    with anyio.fail_after(PATIENCE_S):
        # A block that was on its way meanwhile is refused by the database first.
        while (
            (left := served.services.ledger.unproven) is None
            or "BlocksGone" not in left.trouble
            or left.events < 2
        ):
            await anyio.sleep(0.05)
    found = await verdict(served)
    assert (found["sound"], f"block {checkpoint.n}" in {flaw["where"] for flaw in found["flaws"]}) == (False, True)  # type: ignore[union-attr]
    assert "millrace_ledger_checkpoint_block 2" in (await served.machine.get("/metrics")).text
    assert millrace(served, dsn, "ledger", "verify").exit_code == 1
    health = millrace(served, dsn, "ledger", "health", "--json")
    assert (health.exit_code, '"blocks_kept"' in health.stdout, str(checkpoint) in health.stdout) == (
        1,
        True,
        True,
    )


async def test_a_restored_database_is_accepted_on_purpose(serve: Serve, dsn: str) -> None:
    """It has fewer blocks than were made. Starting the gateway again does not help; a command does."""
    async with serve(dsn) as served:
        for number in (1, 2):
            await served.services.ledger.credit(f"c{number}", "owner", 5, "test")
            await until(served, lambda told, n=number: (told["ledger_checkpoint"] or "").startswith(f"{n}:"))
        checkpoint = served.services.ledger.checkpoint
    with hand(dsn) as connection:
        connection.exec_driver_sql("DELETE FROM block WHERE n > 1")
    async with serve(dsn) as served:
        assert not await may_spend(served)
        for where, status in (("1:" + "0" * 64, 2), (str(checkpoint), 0)):
            words = ("ledger", "accept", "blocks_kept", where, "--reason", "the backup of Monday")
            assert millrace(served, dsn, *words).exit_code == status
        await until_in_order(served)
        await until(
            served, lambda told: told["ledger"] == "in order" and told["ledger_checkpoint"] != str(checkpoint)
        )
        assert (await verdict(served))["sound"]
        told = millrace(served, dsn, "audit", "--json").stdout
        assert "ledger.accept" in told
        assert "Monday" in told


async def test_an_event_that_was_changed_before_it_was_proven_is_not_proven(served: Served, dsn: str) -> None:
    key = DataFolder(served.services.settings.data_dir).ledger_key
    key.chmod(0o644)
    posted = await served.services.ledger.credit("c3", "owner", 5, "test")
    with hand(dsn) as connection:
        raise_credit(connection, "c3", asked=False)
    key.chmod(0o600)
    told = await until(served, lambda told: "broken: events_as_asked" in told["ledger"])
    assert told["ledger_checkpoint"].startswith("2:")
    await until_spending(served, wanted=False)
    where = f"event {posted.event_seq}"
    assert where in {flaw["where"] for flaw in (await verdict(served))["flaws"]}
    words = ("ledger", "accept", "events_as_asked", str(posted.event_seq), "--reason", "incident 9")
    assert millrace(served, dsn, *words).exit_code == 0
    await until_in_order(served)
    await until(served, lambda told: told["ledger"] == "in order" and blocks(told) >= 3)
    assert (await verdict(served))["sound"]

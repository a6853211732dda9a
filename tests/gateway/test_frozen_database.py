"""A PostgreSQL that keeps its connections open and answers nothing: free requests go on, others are told."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from runtime.database import open_engine, write_sessions
from tests import crowds
from tests.accounting.ledgers import LedgerService
from tests.crowds import FREE, PAID, ask, new_key
from tests.databases import Databases, frozen
from tests.fakes.counting_provider import counting_provider
from tests.gateways import running_gateway, until


@pytest.fixture
def dsn(databases: Databases) -> Iterator[str]:
    with databases.database("postgresql") as dsn:
        yield dsn


def credit(dsn: str, user: str) -> None:
    engine = open_engine(dsn)
    with LedgerService(engine) as ledger:
        ledger.now_ns = time.time_ns()
        ledger.credit(user, 10**9)
    engine.dispose()


def test_a_frozen_database_stops_paid_requests_only(dsn: str, tmp_path: Path) -> None:
    with (
        counting_provider() as provider,
        running_gateway(
            tmp_path / "data", model=None, settings=crowds.settings(provider, tmp_path, DATABASE__DSN=dsn)
        ) as gateway,
    ):
        until(lambda: ask(gateway, gateway.api_key, FREE).status == 200 or None)
        key, unseen = new_key(gateway, "ann"), new_key(gateway, "eve")
        credit(dsn, "ann")
        assert [ask(gateway, key, model).status for model in (FREE, PAID)] == [200, 200]
        with frozen(dsn), ThreadPoolExecutor() as callers:
            # What takes longer than PATIENCE_S is an error of the client.
            at_once = [
                callers.submit(ask, gateway, each, model) for model in (FREE, PAID) for each in (key, unseen)
            ]
            free, *others = [asked.result() for asked in at_once]
            later = [ask(gateway, key, FREE) for _ in range(3)]
            refused = [*others, ask(gateway, key, PAID)]
            assert gateway.http().get("/readyz").json()["reason"] == "the database does not answer"
        assert [reply.status for reply in (free, *later)] == [200] * 4
        assert [(reply.status, reply.code) for reply in refused] == [(503, "database_unavailable")] * 4
        until(lambda: ask(gateway, key, PAID).status == 200 or None)
        for reply in (free, *later):
            assert gateway.record(reply.headers["x-request-id"])["lane"] == "pool"
        assert ask(gateway, unseen, FREE).status == 200


def test_a_slow_statement_of_a_server_that_answers_is_waited_for(dsn: str) -> None:
    engine = open_engine(dsn)
    with write_sessions(engine)() as session:
        assert session.scalar(text("SELECT 'slow' FROM pg_sleep(3)")) == "slow"
    engine.dispose()


def test_one_connection_that_goes_silent_is_given_up(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server answers others: the statement's own bound ends the wait, also that of a commit."""
    monkeypatch.setattr("runtime.postgresql._TRANSFER_S", -28.0)
    engine = open_engine(dsn)
    open_session = write_sessions(engine)
    with open_session() as session:
        session.execute(text("CREATE TABLE kept (id int)"))
        backend = psutil.Process(session.scalar(text("SELECT pg_backend_pid()")) or 0)
        driver = session.connection().connection.driver_connection
        assert driver
        driver.allow(30)
        backend.suspend()
        wakes = threading.Timer(60, backend.resume)
        wakes.start()
        try:
            with pytest.raises(OperationalError, match="does not answer"):
                session.commit()
        finally:
            wakes.cancel()
            backend.resume()
    with open_session() as session:
        assert session.scalar(text("SELECT 1")) == 1
    engine.dispose()

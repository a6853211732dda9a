"""The request log: one bad entry costs itself alone, an end is bounded, what is old or too much goes."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from gateway.billing.request_log import PRUNED_MAX, RequestEntry, RequestLog
from gateway.settings import RequestLogSettings
from runtime.database import open_engine, read_sessions, write_sessions
from tests.gateways import until

DAY_NS = 86_400 * 10**9


@pytest.fixture
def engine(dsn: str) -> Iterator[Engine]:
    engine = open_engine(dsn)
    yield engine
    engine.dispose()


def entry(request_id: str, **changes: Any) -> RequestEntry:
    plain = RequestEntry(
        request_id=request_id,
        started_ns=time.time_ns(),
        key_id="k",
        model="m",
        kind="chat",
        lane="cluster",
        backend="b",
        reason="r",
        decision={},
        status=200,
        outcome="completed",
        error="",
        prompt_tokens=1,
        completion_tokens=1,
        ttft_ms=1,
        duration_ms=1,
        charge_nano=0,
        event_seq=1,
    )
    return replace(plain, **changes)


def test_what_cannot_be_written_takes_nothing_else_along(engine: Engine) -> None:
    log = RequestLog(read_sessions(engine), write_sessions(engine))
    twice = entry("twice")
    # All before the thread starts: one batch.
    for each in (
        entry("nul", model="a\0b"),
        entry("half", model="\ud800", error="\udc9b"),
        entry("no json", decision={"half": "\ud800"}),
        entry("too large", duration_ms=2**80),
        twice,
        twice,
        entry("good"),
    ):
        log.add_all([each])
    log.start()
    until(lambda: log.find("good"))
    log.add_all([entry("later")])
    log.stop()
    assert {found.request_id: found.model for found in log.newest()} == {
        "nul": "ab",
        "half": "?",
        "twice": "m",
        "good": "m",
        "later": "m",
    }


def test_an_end_does_not_wait_for_a_writer_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.billing.request_log.QUEUE_MAX", 2)
    hanging, over = threading.Event(), threading.Event()

    def session() -> Session:
        hanging.set()
        over.wait()
        raise RuntimeError("too late")

    log = RequestLog(session, session)
    log.start()
    log.add_all([entry("0")])
    assert hanging.wait(60)
    for number in range(1, 4):
        log.add_all([entry(str(number))])
    log.stop(timeout_s=0.5)
    # The writer still hangs: had the stop waited for it, nobody would ever get here.
    over.set()


def test_old_requests_and_the_oldest_of_too_many_go(engine: Engine) -> None:
    read, write = read_sessions(engine), write_sessions(engine)
    now_ns = time.time_ns()
    before = RequestLog(read, write)
    for number in range(PRUNED_MAX + 1):
        before.add_all([entry(f"old {number}", started_ns=now_ns - 31 * DAY_NS - number)])
    for number in range(5):
        before.add_all([entry(f"new {number}", started_ns=now_ns - number * DAY_NS)])
    before.start()
    until(lambda: before.find("new 4"))
    before.stop()
    log = RequestLog(read, write, RequestLogSettings(days_max=30, rows_max=3))
    log.start()
    until(lambda: (log.find("new 3") is None and log.find("old 0") is None) or None)
    assert [found.request_id for found in log.newest()] == ["new 0", "new 1", "new 2"]
    log.stop()

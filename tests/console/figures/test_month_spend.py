"""What keys were charged this month: the same as a sum of all of it, for the work of what is new."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from accounting.rules import local
from gateway.console.figures import month_spend
from gateway.console.figures.month_spend import MonthSpend
from gateway.database import open_engine, read_sessions
from tests.accounting.books import Books, usage

MONTH_S = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
NEXT_S = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
KEYS = ["k1", "k2", "idle"]


class Asked:
    """Requests of keys, each booked as it is asked."""

    def __init__(self, books: Books, engine: Engine) -> None:
        self.books, self.engine = books, engine
        self.now_s = MONTH_S + 3600
        self.month = MonthSpend(lambda: self.now_s)
        self._count = 0

    def ask(self, key_id: str, charge_nano: int, **fields: Any) -> None:
        self._count += 1
        row: dict[str, Any] = {"started_ns": int(self.now_s * 10**9), "user_id": "owner"} | fields
        used = usage(f"r{self._count}", key_id=key_id, charge_nano=charge_nano, **row)
        self.books.post(local.local_use(used))

    def spent(self, *keys: str) -> dict[str, int]:
        with read_sessions(self.engine)() as session:
            return self.month.of(session, keys or KEYS)


@pytest.fixture
def engine(dsn: str) -> Iterator[Engine]:
    engine = open_engine(dsn)
    yield engine
    engine.dispose()


@pytest.fixture
def books(engine: Engine) -> Iterator[Books]:
    with Books(engine) as books:
        yield books


@pytest.fixture
def asked(books: Books, engine: Engine) -> Asked:
    return Asked(books, engine)


@contextmanager
def statements(engine: Engine) -> Iterator[list[tuple[str, Any]]]:
    """What sums are asked of the database, with their values."""
    found: list[tuple[str, Any]] = []

    def note(_: Any, __: Any, text: str, values: Any, *___: Any) -> None:
        if "sum(" in text:
            found.append((text, values))

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(engine, "before_cursor_execute", note)


def test_it_is_carried_on_by_what_is_new(asked: Asked) -> None:
    assert asked.spent() == {"k1": 0, "k2": 0, "idle": 0}
    asked.ask("k1", 100)
    asked.ask("k2", 7)
    asked.ask("k1", 20, started_ns=int((MONTH_S - 5) * 10**9))
    assert asked.spent() == {"k1": 100, "k2": 7, "idle": 0}, "what began last month is last month's"
    with statements(asked.engine) as summed:
        assert asked.spent() == {"k1": 100, "k2": 7, "idle": 0}
        assert summed == [], "nothing has come since"
        asked.ask("k1", 1)
        assert asked.spent("k1") == {"k1": 101}
        [(text, _)] = summed
        assert "event_seq >" in text, "of that alone"
    # A key that nobody has looked at yet begins with all that it has.
    asked.ask("k3", 5)
    asked.spent("k1")
    assert asked.spent("k3", "k1") == {"k3": 5, "k1": 101}


def test_a_month_begins_with_nothing(asked: Asked) -> None:
    asked.ask("k1", 100)
    assert asked.spent("k1") == {"k1": 100}
    asked.now_s = NEXT_S + 1
    assert asked.spent("k1") == {"k1": 0}
    asked.ask("k1", 3)
    assert asked.spent("k1") == {"k1": 3}


def test_who_looks_from_an_earlier_moment_spoils_nothing(asked: Asked) -> None:
    asked.ask("k1", 100)
    asked.ask("k2", 1)
    with read_sessions(asked.engine)() as earlier:
        # SQLite and PostgreSQL fix the moment with the first question.
        MonthSpend(lambda: asked.now_s).of(earlier, ["k1"])
        asked.ask("k2", 10)
        assert asked.spent("k1") == {"k1": 100}
        assert asked.month.of(earlier, ["k2"]) == {"k2": 1}
    assert asked.spent("k2") == {"k2": 11}


def test_a_look_that_fails_half_way_adds_nothing_twice(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    class HalfRead:
        """What a database gives that fails behind its first row."""

        def __init__(self, rows: Sequence[Any]) -> None:
            self._rows = rows

        def __iter__(self) -> Iterator[Any]:
            yield self._rows[0]
            raise OperationalError("", {}, OSError("disk I/O error"))

        def all(self) -> list[Any]:
            return list(self)

    assert asked.spent("k1", "k2") == {"k1": 0, "k2": 0}
    asked.ask("k1", 100)
    asked.ask("k2", 7)
    execute = Session.execute

    def fail(session: Session, query: Any) -> Any:
        found = execute(session, query)
        return HalfRead(found.all()) if "event_seq >" in str(query) else found

    with monkeypatch.context() as failing, pytest.raises(OperationalError):
        failing.setattr(Session, "execute", fail)
        asked.spent("k1")
    assert asked.spent("k1", "k2") == {"k1": 100, "k2": 7}


def test_many_looks_at_once_come_to_the_same(asked: Asked) -> None:
    asked.spent()
    stop, wrong = threading.Event(), []

    def look() -> None:
        before = 0
        while not stop.is_set():
            now = asked.spent("k1")["k1"]
            if now < 0 or now > 30:
                wrong.append((before, now))

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        asked.ask("k1", 1)
    stop.set()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert asked.spent("k1") == {"k1": 30}


def test_what_is_remembered_and_read_on_is_bounded(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(month_spend, "KEYS_MAX", 2)
    monkeypatch.setattr(month_spend, "EVENTS_MAX", 3)
    for number in range(5):
        asked.ask("k1", 1)
        assert asked.spent("k1", f"other{number}")["k1"] == number + 1
    for _ in range(5):
        asked.ask("k1", 1)
    assert asked.spent("k1") == {"k1": 10}

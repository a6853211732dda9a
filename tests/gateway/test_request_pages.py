"""Pages of the request log: every row that is wanted, once, and no other user's."""

import time
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from accounting.ledger.postings import Posting
from gateway.billing import request_filter
from gateway.billing.request_filter import RequestFilter
from gateway.billing.request_log import RequestEntry, RequestLog
from gateway.identity.caller import HOME, OWNER
from gateway.identity.keys import Keys
from gateway.identity.users import Users
from gateway.pages import Cursor
from runtime.database import open_engine, read_sessions, write_sessions
from runtime.errors import RequestInvalid
from tests.accounting.ledgers import LedgerService, usage
from tests.gateway.test_request_log import entry


@pytest.fixture
def engine(dsn: str) -> Iterator[Engine]:
    engine = open_engine(dsn)
    yield engine
    engine.dispose()


def stored(engine: Engine, entries: list[RequestEntry]) -> RequestLog:
    log = RequestLog(read_sessions(engine), write_sessions(engine))
    log.add_all(entries)
    log.start()
    log.stop()
    return log


def walk(log: RequestLog, wanted: RequestFilter, limit: int) -> list[str]:
    found: list[str] = []
    before: Cursor | None = None
    while True:
        rows, after = log.page(wanted, limit, before)
        found += [row.request_id for row in rows]
        if after is None:
            return found
        before = Cursor.parse(str(after))


@pytest.mark.parametrize("scanned_max", [2, 100])
def test_all_that_is_wanted_comes_once_however_long_the_log_is(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, scanned_max: int
) -> None:
    monkeypatch.setattr(request_filter, "SCANNED_MAX", scanned_max)
    # Several begin in the same nanosecond, as on a coarse clock.
    now_ns, lanes = time.time_ns(), ("cloud", "cluster", "pool")
    entries = [entry(f"{n:02}", started_ns=now_ns + n // 2, lane=lanes[n % 3], status=200 + n) for n in range(20)]
    log = stored(engine, entries)
    ids = [each.request_id for each in reversed(entries)]
    for limit in (1, 2, 3, 50):
        assert walk(log, RequestFilter(), limit) == ids
        assert walk(log, RequestFilter(lane="cloud"), limit) == [i for i in ids if int(i) % 3 == 0]
        assert walk(log, RequestFilter(status=(204, 206)), limit) == ["06", "05", "04"]
        assert [row.request_id for row in log.page(RequestFilter(status=(200, 200)), limit, None, 20).rows] == [
            "00"
        ]
        assert walk(log, RequestFilter(since_ns=now_ns + 1, until_ns=now_ns + 3), limit) == [
            "05",
            "04",
            "03",
            "02",
        ]


def test_a_model_is_found_by_either_of_its_names(engine: Engine) -> None:
    log = stored(engine, [entry("a", model="x", served_model="y"), entry("b", model="y"), entry("c", model="z")])
    assert sorted(walk(log, RequestFilter(model="y"), 10)) == ["a", "b"]


@pytest.mark.parametrize("walked_max", [1, 2, 2000])
def test_users_see_only_their_own_requests(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, walked_max: int
) -> None:
    monkeypatch.setattr(request_filter, "WALKED_MAX", walked_max)
    read, write = read_sessions(engine), write_sessions(engine)
    users = Users(read, write)
    users.add_organization("lab")
    users.add("ann", organization="lab")
    keys = Keys(b"secret" * 6, read, write)
    of_ann, of_owner = (keys.issue(name, (), user_id=name).row.key_id for name in ("ann", OWNER))
    with LedgerService(engine) as ledger:
        # Console sessions have no keys: whose they were is in the ledger.
        for who in ("ann", OWNER):
            used = usage(f"{who} at the console", user_id=who, key_id="")
            ledger.post(Posting(f"use:{who}", "use", who, usages=(used,)))
    now_ns = time.time_ns()
    log = stored(
        engine,
        [
            entry("ann", key_id=of_ann, started_ns=now_ns),
            entry("owner", key_id=of_owner, started_ns=now_ns - 1),
            entry("ann at the console", key_id="", started_ns=now_ns - 2),
            entry(f"{OWNER} at the console", key_id="", started_ns=now_ns - 3),
        ],
    )
    assert walk(log, RequestFilter(user_id="ann"), 10) == ["ann", "ann at the console"]
    assert walk(log, RequestFilter(organization_id="lab"), 1) == ["ann", "ann at the console"]
    assert walk(log, RequestFilter(organization_id=HOME), 10) == ["owner", f"{OWNER} at the console"]
    assert walk(log, RequestFilter(key_id=of_ann, user_id=OWNER), 10) == []


@pytest.mark.parametrize("text", ["", "x.y", "-1.a", "²", str(2**63), "1." + "a" * 600])
def test_an_unknown_cursor_is_refused_by_name(text: str) -> None:
    with pytest.raises(RequestInvalid, match="before"):
        Cursor.parse(text)

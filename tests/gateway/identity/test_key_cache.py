"""Keys in memory: as long as nothing changes about them, and the least recently used goes first."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from gateway.identity import keys as keys_module
from gateway.identity.caller import HOME
from gateway.identity.directory import Directory
from gateway.identity.keys import Keys
from gateway.quota import Quota
from gateway.settings import IdentitySettings
from runtime.database import open_engine, read_sessions, write_sessions

HOUR_S = 3600.0
MINUTE_S = 60.0


@pytest.fixture
def sessions(dsn: str) -> Iterator[tuple[Callable[[], Session], Callable[[], Session]]]:
    engine = open_engine(dsn)
    yield read_sessions(engine), write_sessions(engine)
    engine.dispose()


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


@pytest.fixture
def keys(sessions: Any, clock: list[float]) -> Keys:
    read, write = sessions
    return Keys(b"secret" * 6, read, write, clock=lambda: clock[0])


@pytest.fixture
def other(sessions: Any) -> Directory:
    """Another gateway of the same database, or a command."""
    return Directory.of(Keys(b"secret" * 6, *sessions), IdentitySettings(), ("pool",), *sessions)


def _revoke(other: Directory, key_id: str) -> None:
    other.keys.revoke(key_id)


def _limit(scope: str) -> Callable[[Directory, str], None]:
    def limit(other: Directory, key_id: str) -> None:
        other.quotas.set(Quota(scope.format(key_id), "requests", 1, "day", None))

    return limit


@pytest.mark.parametrize(
    "change",
    [
        _revoke,
        lambda other, key_id: other.keys.rotate(key_id, 0.0),
        lambda other, key_id: other.users.set_role("ann", "admin"),
        lambda other, key_id: other.users.remove("ann"),
        _limit("key:{}"),
        _limit("user:ann"),
        _limit("team:home/lab"),
    ],
    ids=["revoked", "rotated", "role", "removed", "key's limit", "user's limit", "team's limit"],
)
def test_a_key_is_known_until_something_changes_about_it(
    keys: Keys, other: Directory, clock: list[float], change: Callable[[Directory, str], None]
) -> None:
    changed = keys.issue("k", ("pool",), user_id="ann", department="lab")
    untouched = keys.issue("k", ("pool",), user_id="bob", department="other").token
    keys.catch_up()
    for token in (changed.token, untouched):
        assert keys.find(token)
    for _ in range(100):  # longer than it is known without a look
        clock[0] += 1.0
        keys.catch_up()
    assert keys.cached(changed.token)
    change(other, changed.row.key_id)
    keys.catch_up()
    assert keys.cached(changed.token) is None
    assert keys.cached(untouched)
    clock[0] += HOUR_S
    keys.catch_up()
    assert keys.cached(untouched) is None


def test_all_of_an_organization_are_looked_up_again_when_its_limits_change(keys: Keys, other: Directory) -> None:
    keys.catch_up()
    tokens = [keys.issue("k", ("pool",), user_id=user).token for user in ("ann", "bob")]
    assert all(map(keys.find, tokens))
    other.quotas.set(Quota(f"organization:{HOME}", "requests", 7, "day", None))
    keys.catch_up()
    assert not any(map(keys.cached, tokens))
    found = keys.find(tokens[0])
    assert found
    assert [quota.amount for quota in found.quotas] == [7]


def test_without_a_look_a_key_is_known_for_seconds(keys: Keys, clock: list[float]) -> None:
    """The database is away: what it said last holds for a moment."""
    token = keys.issue("k", ("pool",)).token
    keys.catch_up()
    assert keys.find(token)
    clock[0] += 4.9
    assert keys.cached(token)
    clock[0] += 0.2
    assert keys.cached(token) is None


def test_one_key_more_than_fit_costs_the_one_that_was_used_least_recently(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = [keys.issue("k", ("pool",)).token for _ in range(4)]
    for module in (keys_module, "gateway.identity.key_cache"):
        monkeypatch.setattr(f"{getattr(module, '__name__', module)}.CACHE_MAX", 3)
    assert all(map(keys.find, tokens[:3]))
    assert keys.cached(tokens[0])
    assert keys.find(tokens[3])
    assert [bool(keys.cached(token)) for token in tokens] == [True, False, True, True]


def test_what_was_read_before_a_change_is_not_kept_behind_it(sessions: Any, other: Directory) -> None:
    """The key is revoked here after the database has given it, and before the caller is kept."""
    read, write = sessions
    meanwhile: list[Callable[[], object]] = []

    @contextmanager
    def late_read() -> Iterator[Session]:
        with read() as session:
            yield session
        while meanwhile:
            meanwhile.pop()()

    keys = Keys(b"secret" * 6, late_read, write)  # type: ignore[arg-type]
    issued = keys.issue("k", ("pool",))
    meanwhile.append(lambda: keys.revoke(issued.row.key_id))
    assert keys.find(issued.token)
    assert keys.cached(issued.token) is None


def test_a_change_that_is_committed_behind_a_later_one_is_seen(
    keys: Keys, other: Directory, sessions: Any, dsn: str
) -> None:
    """PostgreSQL numbers entries of the audit log before they are committed."""
    if not dsn.startswith("postgresql"):
        pytest.skip("SQLite has one writer")
    issued = [keys.issue("k", ("pool",)) for _ in range(2)]
    keys.catch_up()
    assert all(keys.find(each.token) for each in issued)
    _, write = sessions
    with write() as session, session.begin():
        session.execute(text("SELECT nextval('audit_entry_seq_seq')"))
        seq = session.scalar(text("SELECT currval('audit_entry_seq_seq')"))
        other.keys.revoke(issued[1].row.key_id)
        keys.catch_up()
        assert keys.cached(issued[0].token)
        assert keys.cached(issued[1].token) is None
        session.execute(
            text(
                "INSERT INTO audit_entry (seq, at_ns, actor, address, action, target, organization_id)"
                " VALUES (:seq, 0, 'machine', '', 'key.change', :target, 'home')"
            ),
            {"seq": seq, "target": f"key:{issued[0].row.key_id}"},
        )
    keys.catch_up()
    assert keys.cached(issued[0].token) is None

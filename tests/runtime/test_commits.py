"""Who polls a SQLite file reads it after a commit only; PostgreSQL is read in any case."""

import time
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, event, text

from gateway.identity.key_cache import CACHE_S
from gateway.identity.keys import Keys
from runtime.database import Commits, open_engine, read_sessions, write_sessions


@pytest.fixture
def engine(dsn: str) -> Iterator[Engine]:
    engine = open_engine(dsn)
    yield engine
    engine.dispose()


@pytest.fixture
def other(dsn: str) -> Iterator[Keys]:
    """Keys as another process changes them."""
    engine = open_engine(dsn)
    yield Keys(b"secret" * 6, read_sessions(engine), write_sessions(engine))
    engine.dispose()


def is_sqlite(engine: Engine) -> bool:
    return engine.dialect.name == "sqlite"


def test_a_commit_of_anybody_has_a_new_number_and_reading_has_none(engine: Engine, other: Keys) -> None:
    commits = Commits(engine)
    before = commits.latest()
    other.rows()
    assert commits.latest() == before
    other.create("mine", ("cluster",))
    if is_sqlite(engine):
        assert commits.latest() not in (None, before)
        with engine.begin() as connection:
            connection.execute(text("UPDATE api_key SET name = 'ours'"))
        assert commits.latest() not in (None, before)
    engine.dispose()
    assert commits.latest() is None


def test_changed_keys_are_noticed_and_unchanged_ones_cost_no_query(engine: Engine, other: Keys) -> None:
    clock, asked = [0.0], list[str]()
    commit = Commits(engine).latest
    keys = Keys(b"secret" * 6, read_sessions(engine), write_sessions(engine), lambda: clock[0], commit)
    token = other.create("mine", ("cluster",))
    keys.catch_up()
    assert keys.find(token)
    event.listen(engine, "before_cursor_execute", lambda _c, _cursor, words, *_: asked.append(words))
    for _ in range(3):
        clock[0] += CACHE_S / 2
        keys.catch_up()
    assert keys.cached(token), "the cache was confirmed each time"
    assert any("audit_entry" in words for words in asked) is not is_sqlite(engine)
    caller = keys.find(token)
    assert caller
    other.revoke(caller.key_id)
    keys.catch_up()
    assert keys.cached(token) is None


def test_a_failed_read_is_repeated_without_another_commit(engine: Engine, other: Keys) -> None:
    token = other.create("mine", ("cluster",))
    keys = Keys(
        b"secret" * 6, read_sessions(engine), write_sessions(engine), time.monotonic, Commits(engine).latest
    )
    keys.catch_up()
    caller = keys.find(token)
    assert caller
    other.revoke(caller.key_id)

    def fail(*_: object) -> None:
        raise OSError("no disk")

    event.listen(engine, "before_cursor_execute", fail)
    with pytest.raises(OSError, match="no disk"):
        keys.catch_up()
    event.remove(engine, "before_cursor_execute", fail)
    assert keys.cached(token), "nobody knows yet"
    keys.catch_up()
    assert keys.cached(token) is None

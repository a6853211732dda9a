"""API keys: only the hash is kept, revoking works soon, the secret file is private."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from gateway.database import open_engine, read_sessions, write_sessions
from gateway.identity.keys import CACHE_S, KEY_PREFIX, Keys, load_secret


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


@pytest.fixture
def keys(dsn: str, clock: list[float]) -> Iterator[Keys]:
    engine = open_engine(dsn)
    yield Keys(b"secret" * 6, read_sessions(engine), write_sessions(engine), clock=lambda: clock[0])
    engine.dispose()


def test_a_key_is_found_by_its_text_alone(keys: Keys, dsn: str) -> None:
    token = keys.create("mine", ("cluster", "cloud"), department="lab")
    assert token.startswith(KEY_PREFIX)
    caller = keys.find(token)
    assert caller
    assert caller.lanes == {"cluster", "cloud"}
    assert caller.department == "lab"
    assert keys.find(token + "x") is None
    assert keys.find("") is None
    assert keys.find("\x00' OR 1=1 --") is None
    engine = open_engine(dsn)
    with engine.connect() as connection:
        stored = str(connection.execute(text("SELECT * FROM api_key")).all())
    engine.dispose()
    assert token not in stored
    assert token[10:] not in stored


def test_a_revoked_key_is_forgotten_within_seconds(keys: Keys, clock: list[float]) -> None:
    token = keys.create("mine", ("cluster",))
    caller = keys.find(token)
    assert caller
    assert keys.cached(token) == caller
    assert keys.revoke(caller.key_id) == 1
    assert keys.revoke(caller.key_id) == 0
    clock[0] += CACHE_S + 0.1
    assert keys.cached(token) is None
    assert keys.find(token) is None
    assert keys.find_by_id(caller.key_id) is None
    assert keys.rows()[0].revoked_ns


def test_another_secret_finds_nothing(keys: Keys, dsn: str) -> None:
    """A stolen database is no set of keys: the hash needs the secret from the data folder."""
    token = keys.create("mine", ("cluster",))
    engine = open_engine(dsn)
    assert Keys(b"other" * 7, read_sessions(engine), write_sessions(engine)).find(token) is None
    engine.dispose()


def test_the_secret_is_made_once_and_private(tmp_path: Path) -> None:
    first = load_secret(tmp_path)
    assert len(first) == 32
    assert load_secret(tmp_path) == first
    assert (tmp_path / "secret").stat().st_mode & 0o077 == 0

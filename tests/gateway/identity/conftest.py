"""A directory on each kind of database, with a clock that tests may move."""

from collections.abc import Iterator

import pytest

from gateway.identity.directory import Directory
from gateway.identity.keys import Keys
from gateway.settings import IdentitySettings
from runtime.database import open_engine, read_sessions, write_sessions


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


@pytest.fixture
def directory(dsn: str, clock: list[float]) -> Iterator[Directory]:
    engine = open_engine(dsn)
    read, write = read_sessions(engine), write_sessions(engine)
    keys = Keys(b"secret" * 6, read, write, clock=lambda: clock[0])
    yield Directory.of(keys, IdentitySettings(), ("cluster", "pool"), read, write)
    engine.dispose()

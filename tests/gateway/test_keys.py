"""API keys: only the hash is kept, revoking works soon, the secret file is private."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from gateway.identity.key_cache import CACHE_S
from gateway.identity.keys import KEY_PREFIX, Keys
from gateway.identity.secret import check_secret, load_secret
from gateway.settings import IdentitySettings
from runtime.database import open_engine, read_sessions, write_sessions
from runtime.settings import SettingsInvalid


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
    """A stolen database is no set of keys: the hash needs the secret from the data directory."""
    token = keys.create("mine", ("cluster",))
    engine = open_engine(dsn)
    assert Keys(b"other" * 7, read_sessions(engine), write_sessions(engine)).find(token) is None
    engine.dispose()


def test_the_secret_is_made_once_and_private(tmp_path: Path) -> None:
    first = load_secret(IdentitySettings(), tmp_path)
    assert len(first) == 32
    assert load_secret(IdentitySettings(), tmp_path) == first
    assert (tmp_path / "secret").stat().st_mode & 0o077 == 0


def test_gateways_that_share_a_database_are_given_one_secret(tmp_path: Path) -> None:
    own = load_secret(IdentitySettings(), tmp_path)
    shared = IdentitySettings(secret_file=tmp_path / "secret")
    assert load_secret(shared, tmp_path / "another folder") == own
    text = IdentitySettings.model_validate({"secret": "0123456789abcdef" * 2})
    assert load_secret(text, tmp_path) == b"0123456789abcdef" * 2
    assert "0123456789abcdef" not in repr(text)


@pytest.mark.parametrize(
    ("content", "mode", "told"),
    [
        (b"x" * 32, 0o644, "chmod 600"),
        (b"x" * 31, 0o600, "31 bytes, too few"),
        (None, 0o600, "cannot be read: No such file"),
    ],
)
def test_a_shared_secret_that_is_none_is_refused(
    tmp_path: Path, content: bytes | None, mode: int, told: str
) -> None:
    path = tmp_path / "shared"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    with pytest.raises(SettingsInvalid, match=f"identity.secret_file: .*{told}"):
        load_secret(IdentitySettings(secret_file=path), tmp_path)


def test_a_gateway_with_another_secret_is_told_at_its_start(dsn: str) -> None:
    engine = open_engine(dsn)
    read, write = read_sessions(engine), write_sessions(engine)
    first, second = b"1" * 32, b"2" * 32
    check_secret(first, write)
    check_secret(second, write)  # no key is lost yet
    keys = Keys(second, read, write)
    keys.create("mine", ("cluster",))
    check_secret(second, write)
    with pytest.raises(SettingsInvalid, match=r"identity.secret: .* another secret"):
        check_secret(first, write)
    keys.revoke(keys.rows()[0].key_id)
    check_secret(first, write)
    engine.dispose()

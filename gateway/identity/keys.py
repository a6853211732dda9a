"""API keys: random, shown once, kept as a keyed hash; a bearer token becomes a caller."""

import hmac
import os
import secrets
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from sqlalchemy import Row, select, update
from sqlalchemy.orm import Session

from gateway.identity.caller import Caller
from gateway.identity.tables import api_key_table
from gateway.settings import LaneName

KEY_PREFIX = "mr-"
OWNER = "owner"
# How long a revoked key may still be answered by a gateway that has seen it.
CACHE_S = 5.0
CACHE_MAX = 10_000

_SHOWN = 10
_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key as people may see it."""

    key_id: str
    name: str
    prefix: str
    user_id: str
    department: str
    lanes: tuple[LaneName, ...]
    created_ns: int
    revoked_ns: int | None


def load_secret(folder: Path) -> bytes:
    """The secret that keys are hashed with; made on first use, readable by its owner alone."""
    path = folder / "secret"
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(_SECRET_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        pass
    return path.read_bytes()


class Keys:
    """Makes, finds and revokes keys. Looking one up costs a dictionary access while it is cached."""

    def __init__(
        self,
        secret: bytes,
        read: Callable[[], Session],
        write: Callable[[], Session],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._secret = secret
        self._read = read
        self._write = write
        self._clock = clock
        self._cache: dict[str, tuple[Caller, float]] = {}

    def cached(self, token: str) -> Caller | None:
        """The caller of a token seen within the last CACHE_S seconds."""
        found = self._cache.get(self._digest(token))
        return found[0] if found and found[1] > self._clock() else None

    def find(self, token: str) -> Caller | None:
        """The caller of a valid token; asks the database."""
        digest = self._digest(token)
        query = select(api_key_table).where(api_key_table.c.digest == digest, api_key_table.c.revoked_ns.is_(None))
        with self._read() as session:
            row = session.execute(query).one_or_none()
        if row is None:
            self._cache.pop(digest, None)
            return None
        caller = _as_caller(row)
        if len(self._cache) >= CACHE_MAX:
            self._cache.clear()
        self._cache[digest] = (caller, self._clock() + CACHE_S)
        return caller

    def find_by_id(self, key_id: str) -> Caller | None:
        """The caller of a key that is valid still; for sessions that a key opened."""
        query = select(api_key_table).where(api_key_table.c.key_id == key_id, api_key_table.c.revoked_ns.is_(None))
        with self._read() as session:
            row = session.execute(query).one_or_none()
        return _as_caller(row) if row else None

    @property
    def session_secret(self) -> bytes:
        """For signing console sessions; another secret than the one that keys are hashed with."""
        return hmac.new(self._secret, b"console sessions", sha256).digest()

    def create(
        self, name: str, lanes: tuple[LaneName, ...], *, user_id: str = OWNER, department: str = "home"
    ) -> str:
        """A new key; the returned text is the only copy there will ever be."""
        token = KEY_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
        row = {
            "key_id": uuid.uuid4().hex,
            "name": name,
            "prefix": token[:_SHOWN],
            "digest": self._digest(token),
            "user_id": user_id,
            "department": department,
            "lanes": ",".join(lanes),
            "created_ns": time.time_ns(),
        }
        with self._write() as session, session.begin():
            session.execute(api_key_table.insert().values(row))
        return token

    def rows(self) -> list[KeyRow]:
        with self._read() as session:
            found = session.execute(select(api_key_table).order_by(api_key_table.c.created_ns)).all()
        return [_as_row(row) for row in found]

    def revoke(self, key_id_or_prefix: str) -> int:
        """Revoke the keys with this id or shown prefix; returns how many there were."""
        table = api_key_table
        named = (table.c.key_id == key_id_or_prefix) | (table.c.prefix == key_id_or_prefix)
        order = update(table).where(named, table.c.revoked_ns.is_(None)).values(revoked_ns=time.time_ns())
        with self._write() as session, session.begin():
            changed = session.execute(order)
            return int(changed.rowcount)  # type: ignore[attr-defined]

    def _digest(self, token: str) -> str:
        return hmac.new(self._secret, token.encode("utf-8", "surrogateescape"), sha256).hexdigest()


def _as_caller(row: Row[Any]) -> Caller:
    return Caller(row.key_id, row.prefix, row.user_id, row.department, frozenset(_lanes(row.lanes)))


def _as_row(row: Row[Any]) -> KeyRow:
    return KeyRow(
        key_id=row.key_id,
        name=row.name,
        prefix=row.prefix,
        user_id=row.user_id,
        department=row.department,
        lanes=_lanes(row.lanes),
        created_ns=row.created_ns,
        revoked_ns=row.revoked_ns,
    )


def _lanes(stored: str) -> tuple[LaneName, ...]:
    return tuple(lane for lane in stored.split(",") if lane)  # type: ignore[misc]

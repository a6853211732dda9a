"""Console sessions: stored as a keyed hash, ended by sign-out, by an admin, or with their key or user."""

import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.orm import Session

from gateway.identity import audit, quotas
from gateway.identity.audit import Actor
from gateway.identity.caller import Caller
from gateway.identity.keys import Keys
from gateway.identity.tables import session_table, user_table
from gateway.settings.base import LaneName

SESSIONS_MAX = 50
"""Most sessions of one user; the oldest end first."""

_SECRET_BYTES = 32
_TEXT_MAX = 128
_BROWSER_MAX = 300


@dataclass(frozen=True, slots=True)
class SignedIn:
    """The caller of a session. `csrf` is the token that its own forms carry and no other site can know.

    `session_id` names the session to its owner and grants no access.
    """

    caller: Caller
    name: str
    csrf: str
    session_id: str


@dataclass(frozen=True, slots=True)
class OpenSession:
    """One signed-in browser; `key_id` is set if a key opened the session, `browser` is its user agent."""

    session_id: str
    created_ns: int
    expires_ns: int
    address: str
    browser: str
    key_id: str | None


class Sessions:
    """Opens, finds and ends sessions of the console."""

    def __init__(
        self,
        keys: Keys,
        lanes: tuple[LaneName, ...],
        read: Callable[[], Session],
        write: Callable[[], Session],
        lasts_s: float,
    ) -> None:
        self._keys = keys
        self._lanes = frozenset(lanes)
        self._read = read
        self._write = write
        self.lasts_s = lasts_s

    def open(self, user_id: str, by: Actor, key_id: str | None = None, browser: str = "") -> str:
        """Open a session and return its cookie value. The audit log records the sign-in."""
        text, now_ns = secrets.token_urlsafe(_SECRET_BYTES), time.time_ns()
        column = session_table.c
        row = {
            "digest": self._digest(text),
            "user_id": user_id,
            "key_id": key_id,
            "created_ns": now_ns,
            "expires_ns": now_ns + int(self.lasts_s * 1e9),
            "address": by.address,
            "browser": browser[:_BROWSER_MAX].replace("\x00", ""),
        }
        with self._write() as session, session.begin():
            session.execute(delete(session_table).where(column.expires_ns <= now_ns))
            newest = select(column.digest).where(column.user_id == user_id).order_by(column.created_ns.desc())
            kept = session.scalars(newest.limit(SESSIONS_MAX - 1)).all()
            session.execute(delete(session_table).where(column.user_id == user_id, column.digest.not_in(kept)))
            session.execute(session_table.insert().values(row))
            user = _user_row(session, user_id)
            audit.record(
                session,
                by,
                "session.open",
                f"user:{user_id}",
                organization_id=user.organization_id,
                after={"key_id": key_id},
            )
        return text

    def find(self, text: str) -> SignedIn | None:
        """Return the signed-in caller while the session, its user and the key that opened it are valid."""
        if not text or len(text) > _TEXT_MAX:
            return None
        column = session_table.c
        valid = (column.expires_ns > time.time_ns()) & column.revoked_ns.is_(None)
        query = select(session_table).where(column.digest == self._digest(text), valid)
        with self._read() as session:
            row = session.execute(query).one_or_none()
            user = _user_row(session, row.user_id) if row else None
            if row is None or user is None or user.removed_ns is not None:
                return None
            if row.key_id is None:
                caller: Caller | None = self._of_user(session, user)
            else:
                caller = self._keys.find_by_id(row.key_id)
        return SignedIn(caller, user.name, self._csrf(text), row.digest) if caller else None

    def of_user(self, user_id: str) -> list[OpenSession]:
        """Return a user's open sessions, newest first, including those opened with keys that ended since."""
        query = select(session_table).where(_open_of(user_id)).order_by(session_table.c.created_ns.desc())
        with self._read() as session:
            return [
                OpenSession(row.digest, row.created_ns, row.expires_ns, row.address, row.browser, row.key_id)
                for row in session.execute(query.limit(SESSIONS_MAX))
            ]

    def close(self, text: str, address: str = "") -> None:
        """Sign out: the cookie and all its copies become invalid."""
        digest = self._digest(text)
        with self._read() as session:
            user_id = session.scalar(select(session_table.c.user_id).where(session_table.c.digest == digest))
        if user_id is not None:
            self.close_one(user_id, digest, Actor(f"user:{user_id}", address))

    def close_one(self, user_id: str, session_id: str, by: Actor) -> int:
        """End one session of a user by its id; returns how many sessions ended."""
        return self._end(user_id, session_table.c.digest == session_id, by)

    def close_all(self, user_id: str, by: Actor, *, but: str = "") -> int:
        """End every session of a user other than the one with the id `but`; returns how many ended."""
        return self._end(user_id, session_table.c.digest != but, by)

    def _end(self, user_id: str, which: ColumnElement[bool], by: Actor) -> int:
        with self._write() as session, session.begin():
            user = _user_row(session, user_id)
            open_ = _open_of(user_id) & which
            ended = session.execute(update(session_table).where(open_).values(revoked_ns=time.time_ns()))
            count = int(ended.rowcount)  # type: ignore[attr-defined]
            audit.record(
                session,
                by,
                "session.close",
                f"user:{user_id}",
                organization_id=user.organization_id,
                after={"sessions": count},
            )
        return count

    def is_own_form(self, text: str, csrf: str) -> bool:
        """Whether this gateway made the form for this session."""
        return hmac.compare_digest(self._csrf(text).encode(), csrf.encode())

    def _of_user(self, session: Session, user: Any) -> Caller:
        """Return the caller of a session without a key, with the permissions of a new default key."""
        department = user.organization_id
        scopes = quotas.scopes_of(user.user_id, user.organization_id, department)
        return Caller(
            key_id="",
            key_prefix="",
            user_id=user.user_id,
            department=department,
            lanes=self._lanes,
            organization_id=user.organization_id,
            role=user.role,
            quotas=tuple(quotas.of_scopes(session, scopes)),
        )

    def _digest(self, text: str) -> str:
        return self._keyed(b"id:" + text.encode())

    def _csrf(self, text: str) -> str:
        return self._keyed(b"form:" + text.encode())

    def _keyed(self, what: bytes) -> str:
        return hmac.new(self._keys.session_secret, what, sha256).hexdigest()


def _open_of(user_id: str) -> ColumnElement[bool]:
    column = session_table.c
    return (column.user_id == user_id) & column.revoked_ns.is_(None) & (column.expires_ns > time.time_ns())


def _user_row(session: Session, user_id: str) -> Any:
    return session.execute(select(user_table).where(user_table.c.user_id == user_id)).one()

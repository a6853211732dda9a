"""Sign-ins to the console: kept as a keyed hash, ended by sign-out, by an admin, or with their key and person."""

import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from gateway.identity import audit, quotas
from gateway.identity.audit import Actor
from gateway.identity.caller import Caller
from gateway.identity.keys import Keys
from gateway.identity.tables import person_table, session_table
from gateway.settings.base import LaneName

SESSIONS_MAX = 50
"""Of one person; the oldest go first."""

_SECRET_BYTES = 32
_TEXT_MAX = 128


@dataclass(frozen=True, slots=True)
class SignedIn:
    """Who a session stands for. `csrf` is what the session's own forms carry and no other site can know."""

    caller: Caller
    name: str
    csrf: str


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

    def open(self, user_id: str, by: Actor, key_id: str | None = None) -> str:
        """A new session; returns what its cookie says. Sign-ins are written down in the audit log."""
        text, now_ns = secrets.token_urlsafe(_SECRET_BYTES), time.time_ns()
        column = session_table.c
        row = {
            "digest": self._digest(text),
            "user_id": user_id,
            "key_id": key_id,
            "created_ns": now_ns,
            "expires_ns": now_ns + int(self.lasts_s * 1e9),
        }
        with self._write() as session, session.begin():
            session.execute(delete(session_table).where(column.expires_ns <= now_ns))
            newest = select(column.digest).where(column.user_id == user_id).order_by(column.created_ns.desc())
            kept = session.scalars(newest.limit(SESSIONS_MAX - 1)).all()
            session.execute(delete(session_table).where(column.user_id == user_id, column.digest.not_in(kept)))
            session.execute(session_table.insert().values(row))
            person = _person(session, user_id)
            audit.record(
                session,
                by,
                "session.open",
                f"person:{user_id}",
                organization_id=person.organization_id,
                after={"key_id": key_id},
            )
        return text

    def find(self, text: str) -> SignedIn | None:
        """Who signed in, while session, person and the key that opened it are valid."""
        if not text or len(text) > _TEXT_MAX:
            return None
        column = session_table.c
        valid = (column.expires_ns > time.time_ns()) & column.revoked_ns.is_(None)
        query = select(session_table).where(column.digest == self._digest(text), valid)
        with self._read() as session:
            row = session.execute(query).one_or_none()
            person = _person(session, row.user_id) if row else None
            if row is None or person is None or person.removed_ns is not None:
                return None
            if row.key_id is None:
                caller: Caller | None = self._of_person(session, person)
            else:
                caller = self._keys.find_by_id(row.key_id)
        return SignedIn(caller, person.name, self._csrf(text)) if caller else None

    def close(self, text: str) -> None:
        """Sign out: the cookie opens nothing any more, wherever a copy of it is."""
        self._end(session_table.c.digest == self._digest(text))

    def close_all(self, user_id: str, by: Actor) -> int:
        """End every session of a person; returns how many there were."""
        with self._write() as session, session.begin():
            person = _person(session, user_id)
            column = session_table.c
            open_ = (
                (column.user_id == user_id) & column.revoked_ns.is_(None) & (column.expires_ns > time.time_ns())
            )
            ended = session.execute(update(session_table).where(open_).values(revoked_ns=time.time_ns()))
            count = int(ended.rowcount)  # type: ignore[attr-defined]
            audit.record(
                session,
                by,
                "session.close",
                f"person:{user_id}",
                organization_id=person.organization_id,
                after={"sessions": count},
            )
        return count

    def is_own_form(self, text: str, csrf: str) -> bool:
        """Whether a form was made for this session by us."""
        return hmac.compare_digest(self._csrf(text).encode(), csrf.encode())

    def _end(self, which: Any) -> None:
        open_ = which & session_table.c.revoked_ns.is_(None)
        with self._write() as session, session.begin():
            session.execute(update(session_table).where(open_).values(revoked_ns=time.time_ns()))

    def _of_person(self, session: Session, person: Any) -> Caller:
        """Somebody without a key, who may use what a new key of theirs would be given."""
        scopes = (f"person:{person.user_id}", f"organization:{person.organization_id}")
        return Caller(
            key_id="",
            key_prefix="",
            user_id=person.user_id,
            department=person.organization_id,
            lanes=self._lanes,
            organization_id=person.organization_id,
            role=person.role,
            quotas=tuple(quotas.of_scopes(session, scopes)),
        )

    def _digest(self, text: str) -> str:
        return self._keyed(b"id:" + text.encode())

    def _csrf(self, text: str) -> str:
        return self._keyed(b"form:" + text.encode())

    def _keyed(self, what: bytes) -> str:
        return hmac.new(self._keys.session_secret, what, sha256).hexdigest()


def _person(session: Session, user_id: str) -> Any:
    return session.execute(select(person_table).where(person_table.c.user_id == user_id)).one()

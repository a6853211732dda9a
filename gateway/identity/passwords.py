"""Passwords and the one-time links for choosing one. Every change ends the user's sessions."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, exists, select, update
from sqlalchemy.orm import Session

from gateway.identity import audit
from gateway.identity.audit import MACHINE, Actor
from gateway.identity.caller import HOME, OWNER
from gateway.identity.password_hash import PLACEHOLDER_HASH
from gateway.identity.races import refusing_what_others_did
from gateway.identity.tables import password_link_table, password_table, session_table, user_table
from gateway.identity.users import User, present
from runtime.errors import NotFound

LINK_LASTS_S = 3600
LINK_PATH = "/console/welcome"

_SECRET_BYTES = 32
_TEXT_MAX = 128
_LINK_ENDED = (
    "This link was already used, is older than an hour, or a user has set a password. "
    "`millrace users password NAME` on the gateway's machine creates a new one."
)


def address_of(link: str, root: str) -> str:
    """Return the URL at which a browser opens a link; `root` is the gateway's address."""
    return f"{root.rstrip('/')}{LINK_PATH}?token={link}"


@dataclass(frozen=True, slots=True)
class PasswordLink:
    """A valid link and the user whose password it sets. `is_first` links end with any user's first password."""

    user: User
    is_first: bool
    expires_ns: int


class Passwords:
    """Stored hashes and links. Hashing takes a quarter of a second and is done outside, before any transaction."""

    def __init__(self, read: Callable[[], Session], write: Callable[[], Session]) -> None:
        self._read = read
        self._write = write

    def has_any(self) -> bool:
        """Whether the first password was chosen."""
        with self._read() as session:
            return _has_any(session)

    def changed_ns(self, user_id: str) -> int | None:
        """Return when the user's password was chosen, in Unix nanoseconds; None if there is no password."""
        query = select(password_table.c.changed_ns).where(password_table.c.user_id == user_id)
        with self._read() as session:
            return session.scalar(query)

    def user_ids(self) -> frozenset[str]:
        """Return the ids of all users with a password."""
        with self._read() as session:
            return frozenset(session.scalars(select(password_table.c.user_id)))

    def stored(self, user_id: str) -> tuple[User | None, str]:
        """Return the user and their hash. Without one of both: None, and a hash that no password matches."""
        query = select(password_table.c.hash).join(user_table, user_table.c.user_id == password_table.c.user_id)
        query = query.where(user_table.c.user_id == user_id, user_table.c.removed_ns.is_(None))
        # PostgreSQL stores no NUL in a text and refuses queries with one.
        if "\x00" in user_id:
            return None, PLACEHOLDER_HASH
        with self._read() as session:
            found = session.scalar(query)
            return (None, PLACEHOLDER_HASH) if found is None else (present(session, user_id), found)

    def new_link(self, user_id: str, by: Actor) -> str:
        """Make a link and return its secret; earlier links of the user end. Raises NotFound if unknown."""
        with self._write() as session, session.begin():
            user = present(session, user_id)
            session.execute(delete(password_link_table).where(password_link_table.c.user_id == user_id))
            return _insert_link(session, user, by, is_first=False)

    def new_first_link(self, by: Actor = MACHINE) -> str:
        """Make a link for the first instance admin, which ends once any user has a password.

        Earlier links stay: gateways of one database may start together, and each prints its own.
        """
        column = user_table.c
        admins = (column.organization_id == HOME) & (column.role == "admin") & column.removed_ns.is_(None)
        first = select(column.user_id).where(admins).order_by(column.user_id != OWNER, column.created_ns).limit(1)
        with self._write() as session, session.begin():
            return _insert_link(session, present(session, session.scalars(first).one()), by, is_first=True)

    def link(self, text: str) -> PasswordLink:
        """Return a link. Raises NotFound if it is not valid any more."""
        with self._read() as session:
            return _link(session, text)

    def choose(self, link: str, new_hash: str, by_address: str) -> User:
        """Use up a link: set the new password and end the user's sessions. Raises NotFound, Conflict."""
        with refusing_what_others_did("another visitor used the link"), self._write() as session, session.begin():
            found = _link(session, link)
            used = delete(password_link_table).where(password_link_table.c.digest == _digest(link))
            if session.execute(used).rowcount != 1:  # type: ignore[attr-defined]
                raise NotFound(_LINK_ENDED)
            by = Actor(f"user:{found.user.user_id}", by_address)
            _store(session, found.user, new_hash)
            _end_sessions(session, found.user.user_id)
            _record(session, by, "password.choose", found.user, {"is_first": found.is_first})
        return found.user

    def change(self, user_id: str, old_hash: str, new_hash: str, by: Actor, kept_session: str) -> int:
        """Change the password and end every other session; returns how many ended.

        Raises NotFound if the password was changed or the user was removed meanwhile.
        """
        with self._write() as session, session.begin():
            user = present(session, user_id)
            same = (password_table.c.user_id == user_id) & (password_table.c.hash == old_hash)
            values = {"hash": new_hash, "changed_ns": time.time_ns()}
            changed = session.execute(update(password_table).where(same).values(values))
            if changed.rowcount != 1:  # type: ignore[attr-defined]
                raise NotFound("the password was changed elsewhere at the same moment; try again")
            ended = _end_sessions(session, user_id, session_table.c.digest != kept_session)
            _record(session, by, "password.change", user, {"sessions_ended": ended})
        return ended

    def renew(self, user_id: str, old_hash: str, new_hash: str) -> None:
        """Store the same password, hashed with the current parameters."""
        same = (password_table.c.user_id == user_id) & (password_table.c.hash == old_hash)
        with self._write() as session, session.begin():
            session.execute(update(password_table).where(same).values(hash=new_hash))


def _insert_link(session: Session, user: User, by: Actor, *, is_first: bool) -> str:
    text, now_ns = secrets.token_urlsafe(_SECRET_BYTES), time.time_ns()
    row = {
        "digest": _digest(text),
        "user_id": user.user_id,
        "is_first": int(is_first),
        "expires_ns": now_ns + LINK_LASTS_S * 10**9,
    }
    session.execute(delete(password_link_table).where(password_link_table.c.expires_ns <= now_ns))
    session.execute(password_link_table.insert().values(row))
    _record(session, by, "password.link", user, {"is_first": is_first})
    return text


def _link(session: Session, text: str) -> PasswordLink:
    column = password_link_table.c
    query: Select[Any] = select(password_link_table).where(
        column.digest == _digest(text), column.expires_ns > time.time_ns()
    )
    row = session.execute(query).one_or_none() if 0 < len(text) <= _TEXT_MAX else None
    if row is None or (row.is_first and _has_any(session)):
        raise NotFound(_LINK_ENDED)
    return PasswordLink(present(session, row.user_id), bool(row.is_first), row.expires_ns)


def _has_any(session: Session) -> bool:
    return bool(session.scalar(select(exists(select(password_table.c.user_id)))))


def _store(session: Session, user: User, new_hash: str) -> None:
    session.execute(delete(password_table).where(password_table.c.user_id == user.user_id))
    row = {"user_id": user.user_id, "hash": new_hash, "changed_ns": time.time_ns()}
    session.execute(password_table.insert().values(row))


def _end_sessions(session: Session, user_id: str, which: ColumnElement[bool] | None = None) -> int:
    column, now_ns = session_table.c, time.time_ns()
    open_ = (column.user_id == user_id) & column.revoked_ns.is_(None) & (column.expires_ns > now_ns)
    ended = session.execute(
        update(session_table).where(open_ if which is None else open_ & which).values(revoked_ns=now_ns)
    )
    return int(ended.rowcount)  # type: ignore[attr-defined]


def _record(session: Session, by: Actor, action: str, user: User, after: dict[str, Any]) -> None:
    target = f"user:{user.user_id}"
    audit.record(session, by, action, target, organization_id=user.organization_id, after=after)


def _digest(text: str) -> str:
    """An unsalted digest is enough: the text has 256 random bits and cannot be guessed."""
    return sha256(text.encode("utf-8", "replace")).hexdigest()

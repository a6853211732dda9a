"""API keys: random, shown once, kept as a keyed hash; a bearer token becomes a caller."""

import hmac
import math
import secrets
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

from sqlalchemy import ColumnElement, func, or_, select, tuple_, update
from sqlalchemy.orm import Session

from gateway.identity import audit, users
from gateway.identity.audit import MACHINE, Actor
from gateway.identity.caller import OWNER, Caller
from gateway.identity.key_cache import CACHE_MAX, CACHE_S, KeyCache
from gateway.identity.key_changes import KeyChanges
from gateway.identity.key_queries import ALL, KeyFilter, caller_of, is_valid, named, one, with_users
from gateway.identity.key_rows import ANY, KeyRow, KeyTerms, as_row
from gateway.identity.races import refusing_what_others_did
from gateway.identity.tables import api_key_table, user_table
from gateway.pages import Cursor
from gateway.settings.base import LaneName
from runtime.database import no_commits

KEY_PREFIX = "mr-"
ROWS_MAX = 10_000
KEY_LASTS_MAX_S = 10 * 366 * 86_400

_SHOWN = 10
_SECRET_BYTES = 32
# Our keys are shorter than this; longer tokens are neither hashed nor remembered.
_TOKEN_MAX = 128


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A key and the only copy of its secret."""

    token: str
    row: KeyRow

    def facts(self) -> dict[str, Any]:
        """Return the row's public form with the secret, to be shown once."""
        return {"api_key": self.token} | self.row.facts()


class Keys:
    """Creates, finds and revokes keys. Looking one up costs a dictionary access while it is cached.

    The cache is indexed by the token, which is in memory with every request anyway; hashing would be the slowest
    part. A caller stays cached while `catch_up` finds no change of its key, user or limits; otherwise for CACHE_S.
    `clock` gives seconds that never go back; `commit` is that of `runtime.database.Commits`.
    """

    def __init__(
        self,
        secret: bytes,
        read: Callable[[], Session],
        write: Callable[[], Session],
        clock: Callable[[], float] = time.monotonic,
        commit: Callable[[], int | None] = no_commits,
    ) -> None:
        self._secret = secret
        self._read = read
        self._write = write
        self._clock = clock
        self._cache = KeyCache(clock)
        self._changes = KeyChanges(read, commit)
        self._catching_up = threading.Lock()
        self._wrong: OrderedDict[str, float] = OrderedDict()
        self.refused: Container[str] = ()
        """Ids of keys that are refused even if they are valid in the database."""
        self.on_revoked: Callable[[Sequence[str]], None] | None = None
        """Called with the ids of keys revoked here, in the thread that revoked them."""

    def cached(self, token: str) -> Caller | None:
        """Return the caller of a token from the cache; None if the database has to be queried."""
        return self._cache.get(token)

    def last_known(self, token: str) -> Caller | None:
        """Return the caller of a token that was valid when the database last answered, at most OUTAGE_S ago.

        For use while the database does not answer. `cached` then has the caller for a moment, to limit queries.
        """
        return self._cache.last_known(token)

    def knows(self, token: str) -> bool:
        """Whether the token was valid when it was last looked up; False for a wrong one."""
        return token in self._cache

    def find(self, token: str) -> Caller | None:
        """Return the caller of a valid token; queries the database unless it has just found the token wrong."""
        if not token or len(token) > _TOKEN_MAX or self._wrong.get(token, 0.0) > self._clock():
            return None
        digest, now_ns = self._digest(token), time.time_ns()
        drops, read_s = self._cache.drops, self._clock()
        column = api_key_table.c
        replaced = (column.previous_digest == digest) & (column.previous_until_ns > now_ns)
        with self._read() as session:
            row, caller = caller_of(session, or_(column.digest == digest, replaced), now_ns)
        if row is None or caller is None or row.key_id in self.refused:
            self._cache.remove(token)
            self._note_wrong(token)
            return None
        ends_ns = row.expires_ns if row.digest == digest else _first(row.expires_ns, row.previous_until_ns)
        lasts_s = math.inf if ends_ns is None else (ends_ns - now_ns) / 1e9
        self._cache.put(token, caller, read_s=read_s, lasts_s=lasts_s, drops=drops)
        return caller

    def find_by_id(self, key_id: str) -> Caller | None:
        """Return the caller of a key that is still valid; for sessions that a key opened."""
        if key_id in self.refused:
            return None
        with self._read() as session:
            return caller_of(session, api_key_table.c.key_id == key_id, time.time_ns())[1]

    def catch_up(self) -> None:
        """Read recent changes of all processes, and drop the affected callers. Queries the database."""
        with self._catching_up:
            begun_s = self._clock()
            changed = self._changes.read()
            if changed is None or changed:
                self._cache.drop(changed)
                self._wrong.clear()
            self._cache.confirm(begun_s)

    def drop_refused(self) -> None:
        """Drop the callers of refused keys, after their number has grown."""
        self._cache.drop_keys(self.refused)

    @property
    def session_secret(self) -> bytes:
        """The secret for console sessions, which differs from the one that keys are hashed with."""
        return hmac.new(self._secret, b"console sessions", sha256).digest()

    def create(
        self, name: str, lanes: tuple[LaneName, ...], *, user_id: str = OWNER, department: str = "home"
    ) -> str:
        """Create a key without further terms; return its secret."""
        return self.issue(name, lanes, user_id=user_id, department=department).token

    def issue(
        self,
        name: str,
        lanes: tuple[LaneName, ...],
        *,
        user_id: str = OWNER,
        department: str = "home",
        terms: KeyTerms = ANY,
        is_preemptible: bool = False,
        by: Actor = MACHINE,
    ) -> IssuedKey:
        """Make a key; an unknown user becomes a member of the home organization.

        The key for preemptible requests replaces the earlier one of the same name.

        Raises:
            Conflict: the user was removed, or the account is reserved for preemptible requests.
        """
        if not is_preemptible:
            users.refuse_market_jobs(user_id)
        replaced: list[str] = []
        token = KEY_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
        key_id = uuid.uuid4().hex
        values = {
            "key_id": key_id,
            "name": name,
            "prefix": token[:_SHOWN],
            "digest": self._digest(token),
            "user_id": user_id,
            "department": department,
            "lanes": ",".join(lanes),
            "created_ns": time.time_ns(),
            "is_preemptible": int(is_preemptible),
        }
        with (
            refusing_what_others_did("another admin added this user"),
            self._write() as session,
            session.begin(),
        ):
            users.ensure(session, user_id, by)
            if is_preemptible:
                replaced = _revoke(
                    session, (api_key_table.c.name == name) & (api_key_table.c.is_preemptible == 1), by
                )
            session.execute(api_key_table.insert().values(values | terms.columns()))
            row = one(session, key_id)
            _record(session, by, "key.create", None, row)
        if is_preemptible:
            self._tell_revoked(replaced)
        return IssuedKey(token, row)

    def rotate(self, key_id_or_prefix: str, grace_s: float, by: Actor = MACHINE) -> IssuedKey:
        """Rotate a key's secret, keeping id, limits and history; the old secret stays valid for `grace_s` seconds.

        Raises:
            NotFound: no valid key has this id or prefix.
        """
        token, now_ns = KEY_PREFIX + secrets.token_urlsafe(_SECRET_BYTES), time.time_ns()
        with self._write() as session, session.begin():
            before = one(session, key_id_or_prefix, valid_ns=now_ns)
            column = api_key_table.c
            changed = update(api_key_table).where(column.key_id == before.key_id)
            values = {
                "digest": self._digest(token),
                "prefix": token[:_SHOWN],
                "previous_digest": column.digest,
                "previous_until_ns": now_ns + int(grace_s * 1e9),
            }
            session.execute(changed.values(values))
            row = one(session, before.key_id)
            _record(session, by, "key.rotate", before, row)
        self._drop([row.key_id])
        return IssuedKey(token, row)

    def change(
        self,
        key_id_or_prefix: str,
        terms: KeyTerms,
        lanes: Sequence[LaneName] | None = None,
        by: Actor = MACHINE,
    ) -> KeyRow:
        """Change a key's terms, and its lanes if any are given. Raises NotFound."""
        values = terms.columns() | ({"lanes": ",".join(lanes)} if lanes else {})
        with self._write() as session, session.begin():
            before = one(session, key_id_or_prefix, valid_ns=time.time_ns())
            order = update(api_key_table).where(api_key_table.c.key_id == before.key_id)
            session.execute(order.values(values))
            row = one(session, before.key_id)
            _record(session, by, "key.change", before, row)
        self._drop([row.key_id])
        return row

    def revoke(self, key_id_or_prefix: str, by: Actor = MACHINE) -> int:
        """Revoke the keys with this id or shown prefix; returns how many there were."""
        with self._write() as session, session.begin():
            revoked = _revoke(session, named(key_id_or_prefix), by)
        self._tell_revoked(revoked)
        return len(revoked)

    def row(self, key_id_or_prefix: str) -> KeyRow:
        """Return a key. Raises NotFound, and Conflict if several keys have the prefix."""
        with self._read() as session:
            return one(session, key_id_or_prefix)

    def rows(
        self,
        organization_id: str | None = None,
        user_id: str | None = None,
        filters: KeyFilter = ALL,
        *,
        before: Cursor | None = None,
        limit: int = ROWS_MAX,
    ) -> list[KeyRow]:
        """Return keys of an organization, of a user, or all, newest first; at most ROWS_MAX.

        `before` is the cursor of the previous page's last key.
        """
        column = api_key_table.c
        query = with_users().where(*_bounds(organization_id, user_id), *filters.conditions(time.time_ns()))
        query = query.order_by(column.created_ns.desc(), column.key_id.desc()).limit(min(limit, ROWS_MAX))
        if before is not None:
            query = query.where(tuple_(column.created_ns, column.key_id) < (before.at_ns, before.name))
        with self._read() as session:
            return [as_row(row) for row in session.execute(query)]

    def count(
        self, organization_id: str | None = None, user_id: str | None = None, filters: KeyFilter = ALL
    ) -> int:
        """Return how many keys `rows` has on all its pages."""
        query = with_users().where(*_bounds(organization_id, user_id), *filters.conditions(time.time_ns()))
        with self._read() as session:
            return session.scalar(select(func.count()).select_from(query.subquery())) or 0

    def opening(self, of: Literal["user_id", "organization_id"], names: Sequence[str]) -> dict[str, int]:
        """Return how many active keys each of these users or organizations has."""
        column = user_table.c[of]
        joined = api_key_table.join(user_table, user_table.c.user_id == api_key_table.c.user_id)
        query = select(column, func.count()).select_from(joined).group_by(column)
        with self._read() as session:
            rows = session.execute(query.where(column.in_(names), is_valid(time.time_ns())))
            return {row[0]: row[1] for row in rows}

    def _tell_revoked(self, key_ids: Sequence[str]) -> None:
        self._drop(key_ids)
        if self.on_revoked and key_ids:
            self.on_revoked(key_ids)

    def _drop(self, key_ids: Sequence[str]) -> None:
        self._cache.drop_keys(key_ids)
        self._wrong.clear()

    def _note_wrong(self, token: str) -> None:
        self._wrong[token] = self._clock() + CACHE_S
        self._wrong.move_to_end(token)
        if len(self._wrong) > CACHE_MAX:
            self._wrong.popitem(last=False)

    def _digest(self, token: str) -> str:
        return hmac.new(self._secret, token.encode("utf-8", "surrogateescape"), sha256).hexdigest()


def _bounds(organization_id: str | None, user_id: str | None) -> list[ColumnElement[bool]]:
    """Return the conditions on the owner of the keys, without any other filter."""
    return KeyFilter(user_id=user_id, organization_id=organization_id).conditions(0)


def _revoke(session: Session, which: ColumnElement[bool], by: Actor) -> list[str]:
    valid = which & api_key_table.c.revoked_ns.is_(None)
    found = [as_row(row) for row in session.execute(with_users().where(valid))]
    session.execute(update(api_key_table).where(valid).values(revoked_ns=time.time_ns()))
    for before in found:
        _record(session, by, "key.revoke", before, None)
    return [before.key_id for before in found]


def _record(session: Session, by: Actor, action: str, before: KeyRow | None, after: KeyRow | None) -> None:
    row = after or before
    assert row, "an action is on a key"
    audit.record(
        session,
        by,
        action,
        f"key:{row.key_id}",
        organization_id=row.organization_id,
        before=before.facts() if before else None,
        after=after.facts() if after else None,
    )


def _first(one_ns: int | None, other_ns: int | None) -> int | None:
    return min((at_ns for at_ns in (one_ns, other_ns) if at_ns is not None), default=None)

"""Organizations and their users: membership, roles, and the rule that one instance admin always stays."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import ColumnElement, delete, func, or_, select, tuple_, update
from sqlalchemy.orm import Session

from accounting.ledger.balances import balances
from gateway.identity import audit
from gateway.identity.audit import MACHINE, Actor
from gateway.identity.caller import HOME, MARKET_JOBS, OWNER
from gateway.identity.races import refusing_what_others_did
from gateway.identity.tables import organization_table, password_link_table, password_table, user_table
from gateway.pages import Cursor
from gateway.settings.base import Role
from runtime.errors import Conflict, NotFound, RequestInvalid

NAME_MAX = 100
ROWS_MAX = 10_000

# Valid user ids, which are also valid ledger account names.
_ID = re.compile(r"[A-Za-z0-9._@-]{1,80}")
_EMAIL = re.compile(r"[^\s@]{1,64}@[^\s@]{1,255}")


@dataclass(frozen=True, slots=True)
class Organization:
    organization_id: str
    name: str
    created_ns: int


@dataclass(frozen=True, slots=True)
class User:
    """A user with a ledger account; `removed_ns` is set for a removed user, who can no longer sign in."""

    user_id: str
    organization_id: str
    name: str
    email: str | None
    role: Role
    created_ns: int
    removed_ns: int | None = None

    @property
    def cursor(self) -> Cursor:
        return Cursor(self.created_ns, self.user_id)


class Users:
    """Organizations and users; the audit log has every change with its actor."""

    def __init__(self, read: Callable[[], Session], write: Callable[[], Session]) -> None:
        self._read = read
        self._write = write

    def organizations(self) -> list[Organization]:
        query = select(organization_table).order_by(organization_table.c.created_ns).limit(ROWS_MAX)
        with self._read() as session:
            return [Organization(*row) for row in session.execute(query)]

    def organization(self, id_or_name: str) -> Organization:
        """Raises NotFound."""
        with self._read() as session:
            return organization_named(session, id_or_name)

    def add_organization(self, organization_id: str, name: str | None = None, by: Actor = MACHINE) -> Organization:
        """Add an organization. Raises RequestInvalid, and Conflict if the id or the name is taken."""
        made = Organization(
            checked_id(organization_id, "id"), checked_name(name or organization_id), time.time_ns()
        )
        column = organization_table.c
        taken = (column.organization_id == made.organization_id) | (column.name == made.name)
        with refusing_what_others_did("another admin added it"), self._write() as session, session.begin():
            if session.execute(select(organization_table).where(taken)).first():
                raise Conflict(f"an organization already has the id or name {made.organization_id} or {made.name}")
            session.execute(organization_table.insert().values(asdict(made)))
            _record(session, by, "organization.add", f"organization:{made.organization_id}", made)
        return made

    def users(
        self,
        organization_id: str | None = None,
        text: str = "",
        *,
        removed: bool = False,
        after: Cursor | None = None,
        limit: int = ROWS_MAX,
    ) -> list[User]:
        """Return the users of an organization or all, oldest first; removed users only if `removed`.

        `text` is searched in id, name, address and organization. `after` is the cursor of the previous page's last
        user. At most ROWS_MAX.
        """
        column = user_table.c
        query = select(*_COLUMNS).order_by(column.created_ns, column.user_id).limit(min(limit, ROWS_MAX))
        if after is not None:
            query = query.where(tuple_(column.created_ns, column.user_id) > (after.at_ns, after.name))
        with self._read() as session:
            return [
                User(*row) for row in session.execute(query.where(*_conditions(organization_id, text, removed)))
            ]

    def count(self, organization_id: str | None = None, text: str = "") -> int:
        """Return how many users `users` lists on all its pages."""
        query = select(func.count()).select_from(user_table).where(*_conditions(organization_id, text, False))
        with self._read() as session:
            return session.scalar(query) or 0

    def number_in(self, organization_ids: Sequence[str]) -> dict[str, int]:
        """Return how many users each of these organizations has."""
        column = user_table.c
        query = select(column.organization_id, func.count()).group_by(column.organization_id)
        here = (column.organization_id.in_(organization_ids), column.removed_ns.is_(None))
        with self._read() as session:
            return {row[0]: row[1] for row in session.execute(query.where(*here))}

    def names(self, user_ids: Sequence[str]) -> dict[str, str]:
        """Return the names, by id, of those users who are not removed."""
        column = user_table.c
        query = select(column.user_id, column.name).where(
            column.user_id.in_(user_ids), column.removed_ns.is_(None)
        )
        with self._read() as session:
            return {row[0]: row[1] for row in session.execute(query)}

    def user(self, user_id: str) -> User:
        """Return a user. Raises NotFound, also for a removed one."""
        with self._read() as session:
            return present(session, user_id)

    def ever(self, user_id: str) -> User:
        """Return a user, even a removed one, whose account stays. Raises NotFound."""
        with self._read() as session:
            found = session.execute(select(*_COLUMNS).where(user_table.c.user_id == user_id)).one_or_none()
        if found is None:
            raise NotFound(f"User '{user_id}' not found.")
        return User(*found)

    def has_ownerless_account(self, user_id: str) -> bool:
        """Whether the ledger has an account with this id that never belonged to a user of this instance."""
        with self._read() as session:
            known = select(user_table.c.user_id).where(user_table.c.user_id == user_id)
            return session.execute(known).first() is None and has_account(session, user_id)

    def add(
        self,
        user_id: str,
        *,
        organization: str = HOME,
        name: str | None = None,
        email: str | None = None,
        role: Role = "member",
        by: Actor = MACHINE,
    ) -> User:
        """Add a new user, or restore one who was removed from the same organization.

        Raises:
            RequestInvalid: the id is not a valid user id.
            NotFound: there is no such organization.
            Conflict: the user exists already, or another user has the address.
        """
        with (
            refusing_what_others_did("another admin added this user"),
            self._write() as session,
            session.begin(),
        ):
            there = organization_named(session, organization).organization_id
            refuse_market_jobs(user_id)
            made = User(
                checked_id(user_id, "user"),
                there,
                checked_name(name or user_id),
                checked_email(email),
                role,
                time.time_ns(),
            )
            return insert(session, made, by)

    def set_role(self, user_id: str, role: Role, by: Actor = MACHINE) -> User:
        """Raises NotFound, Conflict for the last instance admin."""
        with self._write() as session, session.begin():
            return change_role(session, user_id, role, by)

    def remove(self, user_id: str, by: Actor = MACHINE) -> None:
        """Remove a user: keys and sessions end, account and history stay. Raises NotFound, Conflict."""
        with self._write() as session, session.begin():
            before = present(session, user_id, lock=True)
            if user_id == OWNER:
                raise Conflict(f"{OWNER} is this gateway's own account and stays; give it another role instead")
            refuse_market_jobs(user_id)
            _refuse_last_admin(session, before)
            session.execute(_of(user_id).values(removed_ns=time.time_ns()))
            _forget_passwords(session, user_id)
            _record(session, by, "user.remove", f"user:{user_id}", None, before)


def refuse_market_jobs(user_id: str) -> None:
    """Raises Conflict for the account of the market's jobs."""
    if user_id == MARKET_JOBS:
        raise Conflict(f"{MARKET_JOBS} is the account of market jobs; choose another ID")


def ensure(session: Session, user_id: str, by: Actor) -> None:
    """Add the owner of a new key as a member of the home organization, if unknown. Raises Conflict if removed."""
    found = session.execute(select(user_table.c.removed_ns).where(user_table.c.user_id == user_id)).one_or_none()
    if found is None:
        insert(session, User(checked_id(user_id, "user"), HOME, user_id, None, "member", time.time_ns()), by)
    elif found.removed_ns is not None:
        raise Conflict(f"{user_id} was removed; add the user again with `millrace users add {user_id}`")


def change_role(session: Session, user_id: str, role: Role, by: Actor) -> User:
    before = present(session, user_id, lock=True)
    if role == before.role:
        return before
    _refuse_last_admin(session, before)
    session.execute(_of(user_id).values(role=role))
    after = present(session, user_id)
    _record(session, by, "user.role", f"user:{user_id}", after, before)
    return after


def checked_id(text: str, field: str) -> str:
    """Raises RequestInvalid."""
    if not _ID.fullmatch(text):
        raise RequestInvalid(f"{field}: must be 1 to 80 letters, digits and . _ @ -", param=field)
    return text


def checked_name(text: str) -> str:
    """Raises RequestInvalid."""
    if not text.strip() or len(text) > NAME_MAX or not text.isprintable():
        raise RequestInvalid(f"name: must be 1 to {NAME_MAX} printable characters", param="name")
    return text


def checked_email(text: str | None) -> str | None:
    """Return the address in lower case, as mailboxes rarely differ by case alone. Raises RequestInvalid."""
    if text is not None and (not _EMAIL.fullmatch(text) or not text.isprintable()):
        raise RequestInvalid("email: must be an address such as ann@example.org", param="email")
    return text and text.lower()


_COLUMNS = [user_table.c[name] for name in User.__slots__]


def insert(session: Session, made: User, by: Actor) -> User:
    """Insert a user, or restore a removed one with this id, who keeps their ledger account. Raises Conflict."""
    column = user_table.c
    found = session.execute(select(*_COLUMNS).where(column.user_id == made.user_id)).one_or_none()
    before = User(*found) if found else None
    _refuse_known_email(session, made)
    if before is None:
        session.execute(user_table.insert().values(asdict(made)))
    elif before.removed_ns is None or before.organization_id != made.organization_id:
        raise Conflict(f"{made.user_id} is already a user; choose another ID")
    else:
        values = {"name": made.name, "email": made.email, "role": made.role, "removed_ns": None}
        session.execute(_of(made.user_id).values(values))
    _record(session, by, "user.add", f"user:{made.user_id}", made, before)
    return made


def has_account(session: Session, user_id: str) -> bool:
    """Whether the ledger has balances for this user id, even if the user is removed or not added yet."""
    return bool(balances(session, f"user:{user_id}:", limit=1))


def awaits_sign_in(email: str) -> ColumnElement[bool]:
    """Match the user to be recognized by this address when they first sign in through the identity provider."""
    column = user_table.c
    return (column.email == email) & column.subject.is_(None) & column.removed_ns.is_(None)


def _refuse_known_email(session: Session, made: User) -> None:
    """Ensure that an address belongs to one user, as the index users_email does. Raises Conflict."""
    if made.email is None:
        return
    others = awaits_sign_in(made.email) & (user_table.c.user_id != made.user_id)
    if session.execute(select(user_table.c.user_id).where(others)).first():
        raise Conflict(f"email: another user already has {made.email}", param="email")


def mentions(text: str, *columns: ColumnElement[str]) -> ColumnElement[bool]:
    """Match a text in one of the columns, ignoring case. SQLite ignores the case of ASCII only."""
    spelled = sorted({text, text.lower(), text.upper(), text.title()})
    return or_(*(column.icontains(each, autoescape=True) for column in columns for each in spelled))


def _conditions(organization_id: str | None, text: str, removed: bool) -> list[ColumnElement[bool]]:
    column = user_table.c
    found: list[ColumnElement[bool]] = []
    if organization_id is not None:
        found.append(column.organization_id == organization_id)
    if not removed:
        found.append(column.removed_ns.is_(None))
    if text:
        found.append(mentions(text, column.user_id, column.name, column.email, column.organization_id))
    return found


def organization_named(session: Session, id_or_name: str) -> Organization:
    """Return the organization with this id or name. Raises NotFound if there is none."""
    column = organization_table.c
    named = (column.organization_id == id_or_name) | (column.name == id_or_name)
    # A matching id takes precedence over another organization's name.
    found = session.execute(
        select(organization_table).where(named).order_by((column.organization_id == id_or_name).desc())
    ).first()
    if found is None:
        raise NotFound(f"organization {id_or_name} not found")
    return Organization(*found)


def present(session: Session, user_id: str, *, lock: bool = False) -> User:
    """Return a user who was not removed.

    Raises NotFound if there is none. `lock` also locks all instance admins.
    """
    query = select(*_COLUMNS).where(user_table.c.user_id == user_id, user_table.c.removed_ns.is_(None))
    if lock:
        # Lock all instance admins: two removals at once must not each find the other admin left.
        admins = select(user_table.c.user_id).where(_is_instance_admin()).order_by(user_table.c.user_id)
        session.execute(admins.with_for_update()).all()
    found = session.execute(query).one_or_none()
    if found is None:
        raise NotFound(f"User '{user_id}' not found.")
    return User(*found)


def _is_instance_admin() -> Any:
    column = user_table.c
    return (column.organization_id == HOME) & (column.role == "admin") & column.removed_ns.is_(None)


def _refuse_last_admin(session: Session, user: User) -> None:
    if user.organization_id != HOME or user.role != "admin":
        return
    if session.scalar(select(func.count()).select_from(user_table).where(_is_instance_admin())) == 1:
        raise Conflict(f"{user.user_id} is the last instance admin. Give another user the role first")


def _forget_passwords(session: Session, user_id: str) -> None:
    """Delete the password and its links: a restored user chooses a new one."""
    for table in (password_table, password_link_table):
        session.execute(delete(table).where(table.c.user_id == user_id))


def _of(user_id: str) -> Any:
    return update(user_table).where(user_table.c.user_id == user_id)


def _record(
    session: Session,
    by: Actor,
    action: str,
    target: str,
    after: User | Organization | None,
    before: User | None = None,
) -> None:
    whose = after or before
    assert whose, "an action has a target"
    audit.record(
        session,
        by,
        action,
        target,
        organization_id=whose.organization_id,
        before=asdict(before) if before else None,
        after=asdict(after) if after else None,
    )

"""Manage credit grants: promotional credits, granted once, with an expiry. What is left then returns to us."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from sqlalchemy import ColumnElement, Row, Select, func, insert, literal, select
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from accounting.chart import INCOME_BREAKAGE
from accounting.errors import DatabaseFailing, IdempotencyConflict, PostingInvalid
from accounting.ledger.balances import Reader
from accounting.ledger.postings import Posting
from accounting.rules import grants
from accounting.tables import account_table, credit_grant_table, transfer_table

Scope: TypeAlias = Literal["cloud", "market", "all"]
"""The lanes that accept a credit grant's credits."""

LIFE_MAX_NS = 10 * 366 * 86_400 * 10**9
"""The longest life of a credit grant, in nanoseconds."""
_SHOWN_MAX = 1_000

_account, _grant = account_table.c, credit_grant_table.c
_code: ColumnElement[str] = literal("user:") + _grant.user_id + literal(":promo:") + _grant.id


@dataclass(frozen=True, slots=True)
class CreditGrant:
    """A credit grant as it was granted. An `id` names one credit grant, even across users."""

    id: str
    user_id: str
    amount_nano: int
    expires_ns: int
    scope: Scope = "cloud"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GrantLeft:
    """A credit grant with its balance. Open holds keep `held_nano` of `posted_nano`."""

    grant: CreditGrant
    created_ns: int
    posted_nano: int
    held_nano: int

    @property
    def available_nano(self) -> int:
        return self.posted_nano - self.held_nano


class CreditGrants:
    """Store credit grants. `open_session` returns sessions that may write."""

    def __init__(self, open_session: Callable[[], Session], *, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._open_session = open_session
        self._clock_ns = clock_ns

    def write_down(self, grant: CreditGrant) -> Posting:
        """Store a credit grant's row and return the event that grants it. The same credit grant gives the same
        event, booked once.

        The row comes first. A credit grant whose event was never booked has no credits, and a retry grants it.

        Raises:
            AccountUnknown: an account's code cannot contain the id.
            AmountInvalid: no event may move this amount.
            PostingInvalid: it ends in the past, or over `LIFE_MAX_NS` from now; the reason exceeds `MAX_TEXT`;
                or the scope is not usable, because the market takes no promotional credits yet.
            IdempotencyConflict: another credit grant has this id.
            DatabaseFailing: the row could not be written, and nothing is granted.
        """
        if grant.scope != "cloud":
            raise PostingInvalid(f"credit grant {grant.id!r} cannot be spent: its scope must be 'cloud'")
        posting = grants.promo(grant.id, grant.user_id, grant.amount_nano, grant.reason)
        self._write(grant)
        return posting

    def _write(self, grant: CreditGrant) -> None:
        try:
            try:
                self._write_once(grant)
            except IntegrityError:
                # Another process granted it at the same moment, so its row exists now.
                self._write_once(grant)
        except SQLAlchemyError as error:
            raise DatabaseFailing(f"a credit grant could not be written: {type(error).__name__}") from error

    def _write_once(self, grant: CreditGrant) -> None:
        now_ns = self._clock_ns()
        with self._open_session() as session, session.begin():
            found = session.execute(select(credit_grant_table).where(_grant.id == grant.id)).one_or_none()
            if found is not None and _grant_of(found) != grant:
                raise IdempotencyConflict(f"promo:{grant.id}")
            if found is not None:
                return
            if not now_ns < grant.expires_ns <= now_ns + LIFE_MAX_NS:
                raise PostingInvalid(f"credit grant {grant.id!r} would end in the past, or too far ahead")
            session.execute(insert(credit_grant_table).values(_row(grant, now_ns)))


def grants_of(reader: Reader, user_id: str, *, limit: int = _SHOWN_MAX) -> list[GrantLeft]:
    """Return a user's credit grants with what is left of each, in the order of their ends.

    If there are more than `limit`, those that ended longest ago are left out.
    """
    query = _with_left().where(_grant.user_id == user_id).order_by(_grant.expires_ns.desc(), _grant.id.desc())
    rows = reader.execute(query.limit(min(limit, _SHOWN_MAX))).all()
    return [_left_of(row) for row in reversed(rows)]


def grant_named(reader: Reader, grant_id: str) -> GrantLeft | None:
    """Return a credit grant by its id; None if there is none."""
    row = reader.execute(_with_left().where(_grant.id == grant_id)).one_or_none()
    return None if row is None else _left_of(row)


def expiries(reader: Reader, now_ns: int, *, ended_from_ns: int = 0, limit: int = _SHOWN_MAX) -> list[Posting]:
    """Return the events that expire credit grants which ended since `ended_from_ns`, except what holds keep.

    What a hold keeps expires by another event, once that hold is resolved.
    """
    left = _account.credits_posted - _account.debits_posted - _account.debits_pending
    query = (
        select(_grant.id, _grant.user_id, left, _account.id)
        .join(account_table, _account.code == _code)
        .where(_grant.expires_ns <= now_ns, _grant.expires_ns >= ended_from_ns, left > 0)
        .order_by(_grant.expires_ns, _grant.id)
        .limit(min(limit, _SHOWN_MAX))
    )
    return [
        grants.expire(grant_id, user_id, left_nano, _expired_before(reader, account_id) + 1)
        for grant_id, user_id, left_nano, account_id in reader.execute(query).all()
    ]


def _with_left() -> Select[*tuple[Any, ...]]:
    """Select credit grants with their balance. A grant whose event was never booked has zero."""
    posted = func.coalesce(_account.credits_posted - _account.debits_posted, 0)
    held = func.coalesce(_account.debits_pending, 0)
    return select(credit_grant_table, posted, held).join(account_table, _account.code == _code, isouter=True)


def _left_of(row: Row[*tuple[Any, ...]]) -> GrantLeft:
    return GrantLeft(_grant_of(row), row.created_ns, row[-2], row[-1])


def _expired_before(reader: Reader, account_id: int) -> int:
    breakage = select(_account.id).where(_account.code == INCOME_BREAKAGE).scalar_subquery()
    transfer = transfer_table.c
    count = select(func.count()).where(transfer.debit == account_id, transfer.credit == breakage)
    return reader.execute(count).scalar_one()


def _row(grant: CreditGrant, now_ns: int) -> dict[str, str | int]:
    return {
        "id": grant.id,
        "user_id": grant.user_id,
        "amount_nano": grant.amount_nano,
        "scope": grant.scope,
        "reason": grant.reason,
        "created_ns": now_ns,
        "expires_ns": grant.expires_ns,
    }


def _grant_of(row: Row[*tuple[Any, ...]]) -> CreditGrant:
    return CreditGrant(row.id, row.user_id, row.amount_nano, row.expires_ns, row.scope, row.reason)

"""Look up which accounts pay for a caller. Results are remembered, because they seldom change."""

import time
from collections.abc import Callable, Collection, Iterable

from sqlalchemy import Select, literal, null, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from accounting.chart import EXPENSE_OWN_USE, pool_paid, terms_of, user_paid
from accounting.errors import DatabaseFailing
from accounting.ledger.balances import Reader, available
from accounting.money import MAX_EVENT_NANO
from accounting.rules.held import Payer
from accounting.rules.parts import Share
from accounting.spending.funding import Funding, FundingSource
from accounting.tables import account_table, credit_grant_table

GRANTS_MAX = 16
"""A user's credit grants among the funding sources, at most. The next one enters when one is used up or ends."""
REMEMBERED_NS = 60 * 10**9
"""Funding sources are read again after this time, in nanoseconds; sooner if they have too little."""
_REMEMBERED_MAX = 16_384
# Most names in one statement.
_SURVEYED_MAX = 1_000

_account, _grant = account_table.c, credit_grant_table.c


def funding_of(reader: Reader, payer: Payer, now_ns: int) -> Funding:
    """Return the accounts that pay for a caller, in their order, without empty grants and pools."""
    grantee = payer.user_id if payer.takes_grants else ""
    rows = reader.execute(_first_grants(grantee, now_ns).union_all(_pool(payer.pool_id))).all()
    grants = sorted((row for row in rows if row.expires_ns is not None), key=lambda row: (row.expires_ns, row.id))
    pools = [row for row in rows if row.expires_ns is None]
    return (*(FundingSource(row.code, row.expires_ns) for row in (*grants, *pools)), *_last(payer))


def fundings_of(reader: Reader, payers: Collection[Payer], now_ns: int) -> dict[Payer, Funding]:
    """Return the funding sources of many callers at once, each as in `funding_of`."""
    grants, users = dict[str, list[FundingSource]](), {payer.user_id for payer in payers if payer.takes_grants}
    for user_id, code, ends_ns in reader.execute(_grants_of_many(users, now_ns)):
        grants.setdefault(user_id, []).append(FundingSource(code, ends_ns))
    codes = {pool_paid(payer.pool_id) for payer in payers if payer.pool_id}
    has_credits = _account.credits_posted > _account.debits_posted
    pools = set(reader.scalars(select(_account.code).where(_account.code.in_(codes), has_credits)))
    return {
        payer: (
            *(grants.get(payer.user_id, ())[:GRANTS_MAX] if payer.takes_grants else ()),
            *(
                (FundingSource(pool_paid(payer.pool_id)),)
                if payer.pool_id and pool_paid(payer.pool_id) in pools
                else ()
            ),
            *_last(payer),
        )
        for payer in payers
    }


def credits_of(reader: Reader, payer: Payer, now_ns: int) -> list[Share]:
    """Return what a caller may spend now from each of its funding sources, in their order."""
    funding = funding_of(reader, payer, now_ns)
    found = _spendable(reader, [source.account for source in funding])
    return [Share(source.account, max(0, found[source.account])) for source in funding]


class FundingLookup:
    """Remember funding sources. Belongs to the leases' thread."""

    def __init__(self, open_session: Callable[[], Session], *, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._open_session = open_session
        self._clock_ns = clock_ns
        self._remembered: dict[Payer, tuple[int, Funding]] = {}

    def of(self, payer: Payer) -> Funding:
        """Return a caller's funding sources. Raises DatabaseFailing."""
        looked_ns, funding = self._remembered.get(payer, (0, ()))
        now_ns = self._clock_ns()
        if funding and abs(now_ns - looked_ns) < REMEMBERED_NS:
            return funding
        return self.look(payer)

    def look(self, payer: Payer) -> Funding:
        """Read funding sources again, because credits were missing or may have come. Raises DatabaseFailing."""
        # If credits are granted meanwhile, `forget_all` replaces this dictionary, and the stale result is not
        # kept.
        now_ns, remembered = self._clock_ns(), self._remembered
        try:
            with self._open_session() as session:
                funding = funding_of(session, payer, now_ns)
        except SQLAlchemyError as error:
            raise DatabaseFailing(f"credits cannot be read: {type(error).__name__}") from error
        if len(remembered) >= _REMEMBERED_MAX:
            remembered.clear()
        remembered[payer] = (now_ns, funding)
        return funding

    def survey(
        self, payers: Collection[Payer], accounts: Collection[str]
    ) -> tuple[dict[Payer, Funding], dict[str, int]]:
        """Read many callers' funding sources at once, and what may be spent from these and from `accounts`.

        Raises:
            DatabaseFailing: the credits cannot be read.
        """
        now_ns, all_payers = self._clock_ns(), list(payers)
        funding_lookup, found = dict[Payer, Funding](), dict[str, int]()
        try:
            with self._open_session() as session:
                for start in range(0, len(all_payers), _SURVEYED_MAX):
                    funding_lookup |= fundings_of(session, all_payers[start : start + _SURVEYED_MAX], now_ns)
                codes = sorted(
                    {source.account for funding in funding_lookup.values() for source in funding} | set(accounts)
                )
                for start in range(0, len(codes), _SURVEYED_MAX):
                    found |= _spendable(session, codes[start : start + _SURVEYED_MAX])
        except SQLAlchemyError as error:
            raise DatabaseFailing(f"credits cannot be read: {type(error).__name__}") from error
        return funding_lookup, found

    def available(self, accounts: Iterable[str]) -> dict[str, int]:
        """Return what may be spent from each account, leases and holds included. Raises DatabaseFailing."""
        try:
            with self._open_session() as session:
                return _spendable(session, list(accounts))
        except SQLAlchemyError as error:
            raise DatabaseFailing(f"credits cannot be read: {type(error).__name__}") from error

    def forget_all(self) -> None:
        """Forget all funding sources, because credits were granted. Callable on any thread."""
        self._remembered = {}


def _spendable(reader: Reader, codes: Collection[str]) -> dict[str, int]:
    """Return what may be spent from each account. Only the spending limit bounds accounts that are not guarded."""
    unbounded = {code: MAX_EVENT_NANO for code in codes if not terms_of(code).guarded}
    return available(reader, codes) | unbounded


def _last(payer: Payer) -> Funding:
    own = FundingSource(user_paid(payer.user_id))
    return (own, FundingSource(EXPENSE_OWN_USE)) if payer.is_own_use else (own,)


def _grants_of_many(user_ids: Collection[str], now_ns: int) -> Select[str, str, int]:
    code = literal("user:") + _grant.user_id + literal(":promo:") + _grant.id
    return (
        select(_grant.user_id, _account.code, _grant.expires_ns)
        .join(account_table, _account.code == code)
        .where(_grant.user_id.in_(user_ids), _grant.expires_ns > now_ns, _grant.scope.in_(("cloud", "all")))
        .where(_account.credits_posted > _account.debits_posted)
        .order_by(_grant.expires_ns, _grant.id)
    )


def _first_grants(user_id: str, now_ns: int) -> Select[str, int | None, str]:
    """Select the credit grants that end first, among those that may pay for a cloud request."""
    code = literal("user:") + _grant.user_id + literal(":promo:") + _grant.id
    first = (
        select(_account.code, _grant.expires_ns, _grant.id)
        .join(account_table, _account.code == code)
        .where(_grant.user_id == user_id, _grant.expires_ns > now_ns, _grant.scope.in_(("cloud", "all")))
        .where(_account.credits_posted > _account.debits_posted)
        .order_by(_grant.expires_ns, _grant.id)
        .limit(GRANTS_MAX)
        .subquery()
    )
    return select(first.c.code, first.c.expires_ns, first.c.id)


def _pool(pool_id: str) -> Select[str, int | None, str]:
    has_credits = _account.credits_posted > _account.debits_posted
    nothing = null().label("expires_ns"), literal("").label("id")
    return select(_account.code, *nothing).where(_account.code == pool_paid(pool_id), has_credits)

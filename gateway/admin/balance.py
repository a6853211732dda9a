"""A user's available and reserved credits, and their debt; an organization's balance."""

import time
from dataclasses import dataclass

from sqlalchemy.orm import Session

from accounting import chart
from accounting.ledger.balances import Balance, balance
from accounting.rules.held import Payer
from accounting.rules.parts import Share
from accounting.spending.credit_grants import GrantLeft, grants_of
from accounting.spending.funding_sources import credits_of
from gateway.admin.authority import Authority, organization_of, user_of
from gateway.billing.ledger_service import LedgerService


@dataclass(frozen=True, slots=True)
class UserBalance:
    """A user's credits in nano-USD. `available_nano` may pay for a cloud request now; `pool` is None once removed."""

    user_id: str
    organization_id: str
    available_nano: int
    held_nano: int
    owed_nano: int
    grants: tuple[GrantLeft, ...]
    pool: Balance | None
    paid: Balance

    @property
    def parts(self) -> tuple[GrantLeft | Balance, ...]:
        """Return the credits in charge order."""
        return (*self.grants, *((self.pool,) if self.pool else ()), self.paid)


async def user_balance(authority: Authority, ledger: LedgerService, user: str | None) -> UserBalance:
    """Return the caller's credits; for admins those of a user. Raises RequestInvalid, RoleForbids, NotFound."""
    return await ledger.look(lambda session: _of_user(session, authority, user_of(authority, user)))


def credits_in_order(authority: Authority, user_id: str) -> list[Share]:
    """Return a user's credits in charge order. Raises NotFound for a removed user too, RoleForbids."""
    payer = Payer(user_id, authority.directory.users.user(user_of(authority, user_id)).organization_id)
    with authority.directory.read() as session:
        return credits_of(session, payer, time.time_ns())


async def organization_balance(
    authority: Authority, ledger: LedgerService, organization: str
) -> tuple[str, Balance]:
    """Return the caller's organization with its balance; for admins another one. Raises RoleForbids, NotFound."""

    def look(session: Session) -> tuple[str, Balance]:
        pool_id = organization_of(authority, organization)
        return pool_id, balance(session, chart.pool_paid(pool_id))

    return await ledger.look(look)


def _of_user(session: Session, authority: Authority, user_id: str) -> UserBalance:
    user, now_ns = authority.directory.users.ever(user_id), time.time_ns()
    grants, paid = grants_of(session, user_id), balance(session, chart.user_paid(user_id))
    shares_pool = user.removed_ns is None
    payer = Payer(user_id, user.organization_id if shares_pool else "")
    return UserBalance(
        user_id,
        user.organization_id,
        available_nano=sum(share.amount_nano for share in credits_of(session, payer, now_ns)),
        held_nano=sum(left.held_nano for left in grants) + paid.held_nano,
        owed_nano=balance(session, chart.user_receivable(user_id)).posted_nano,
        grants=tuple(left for left in grants if left.grant.expires_ns > now_ns),
        pool=balance(session, chart.pool_paid(user.organization_id)) if shares_pool else None,
        paid=paid,
    )

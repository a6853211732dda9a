"""Credits: given by instance admins, and moved between users and their organization's balance.

Every function books once for its id: repeating it answers the same again. A user's debts are paid first from what
they receive.
"""

import asyncio
import time
from functools import partial
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, Field, model_validator
from sqlalchemy.orm import Session

from accounting.errors import IdempotencyConflict, PostingDenied, PostingInvalid
from accounting.ledger.postings import Posted, Posting
from accounting.money import UsdAmount, format_usd
from accounting.rules import grants
from accounting.spending.credit_grants import CreditGrant, grant_named
from gateway.admin.fields import Body, Text, as_ns
from gateway.admin.ledger_access import Booked, LedgerAccess
from gateway.billing.ledger_service import LedgerService
from gateway.identity.caller import Caller
from runtime.errors import RequestInvalid
from runtime.times import at

_DAY_NS = 86_400 * 10**9

Amount = Annotated[UsdAmount, Field(gt=0)]


class NewCredit(Body):
    """Credits for money that arrived in the gateway's bank account: for a user, or for an organization balance."""

    user: Text | None = None
    organization: Text | None = None
    amount: Amount
    reason: Text

    @model_validator(mode="after")
    def _has_one_owner(self) -> Self:
        if (self.user is None) == (self.organization is None):
            raise ValueError("user or organization: set exactly one of the two")
        return self


class Promo(Body):
    """Promotional credits, which expire. They pay for cloud requests, but not on the market."""

    user: Text
    amount: Amount
    scope: Literal["cloud"] = "cloud"
    reason: Text


class NewPromo(Promo):
    expires: AwareDatetime


class PromoForDays(Promo):
    days: Annotated[int, Field(ge=1, le=3650)]


class IntoPool(Body):
    amount: Amount


class FromOwnPool(Body):
    """For a user, from the balance of their own organization."""

    user: Text
    amount: Amount


class OutOfPool(FromOwnPool):
    organization: Text


async def give(access: LedgerAccess, credit_id: str, new: NewCredit) -> Booked:
    """Give credits to a user or an organization balance. Raises NotFound, and the errors of the ledger."""
    ledger, users = access.ledger, access.directory.users
    if new.user is not None:
        recipient = await asyncio.to_thread(users.user, new.user)
        posted = await ledger.credit(credit_id, recipient.user_id, new.amount, new.reason)
        whose = f"user:{recipient.user_id}"
    else:
        found = await asyncio.to_thread(users.organization, new.organization or "")
        posted = await ledger.credit_pool(credit_id, found.organization_id, new.amount, new.reason)
        whose = f"organization:{found.organization_id}"
    facts = {"id": credit_id, "to": whose, "amount": format_usd(new.amount), "reason": new.reason}
    return await access.record("credit.add", whose, posted, facts)


async def give_promo(access: LedgerAccess, grant_id: str, new: NewPromo | PromoForDays) -> Booked:
    """Give a user promotional credits that expire.

    Raises NotFound, RequestInvalid if they would expire in the past or too far ahead, and the ledger's errors.
    """
    recipient = await asyncio.to_thread(access.directory.users.user, new.user)
    grant = await _promo(access, grant_id, recipient.user_id, new)
    try:
        try:
            posted = await access.ledger.grant(grant)
        except IdempotencyConflict:
            # The same grant may have been booked since its end was computed.
            grant = await _promo(access, grant_id, recipient.user_id, new)
            posted = await access.ledger.grant(grant)
    except PostingInvalid as error:
        field = "expires" if isinstance(new, NewPromo) else "days"
        raise RequestInvalid(f"{field}: {error}", param=field) from error
    whose, amount = f"user:{recipient.user_id}", format_usd(new.amount)
    facts = {"id": grant_id, "to": whose, "amount": amount, "scope": new.scope}
    facts |= {"expires": at(grant.expires_ns), "reason": new.reason}
    return await access.record("credit.grant", whose, posted, facts)


async def fund_pool(access: LedgerAccess, move_id: str, caller: Caller, amount_nano: int) -> Booked:
    """Transfer the caller's own credits to the organization balance; only an operator can return them.

    Those bought by card a short while ago stay, since the bank may take them back. Raises PayerFrozen,
    RequestInvalid for credits that are too recent, and the errors of the ledger.
    """
    organization_id = caller.organization_id
    posting = grants.pool_funded(move_id, caller.user_id, organization_id, amount_nano)
    posted = await _put_in(access, caller.user_id, amount_nano, posting)
    facts = {"id": move_id, "to": f"organization:{organization_id}", "amount": format_usd(amount_nano)}
    return await access.record("credit.pool", f"user:{caller.user_id}", posted, facts)


async def return_from_pool(access: LedgerAccess, move_id: str, new: FromOwnPool) -> Booked:
    """Return credits of an organization balance to a user.

    Raises NotFound, RequestInvalid if the user is not of that organization, and the errors of the ledger.
    """
    recipient = await asyncio.to_thread(access.directory.users.user, new.user)
    if isinstance(new, OutOfPool) and recipient.organization_id != new.organization:
        raise RequestInvalid(f"user: {new.user} does not belong to {new.organization}", param="user")
    posting = grants.pool_returned(move_id, recipient.organization_id, recipient.user_id, new.amount)
    posted = await _moved(access.ledger, posting)
    await access.ledger.settle_debt(posting.idem_key, recipient.user_id)
    facts = {"id": move_id, "to": f"user:{recipient.user_id}", "amount": format_usd(new.amount)}
    return await access.record("credit.return", f"organization:{recipient.organization_id}", posted, facts)


async def _promo(access: LedgerAccess, grant_id: str, user_id: str, new: NewPromo | PromoForDays) -> CreditGrant:
    if isinstance(new, NewPromo):
        expires_ns = as_ns(new.expires) or 0
    else:
        expires_ns = await access.ledger.look(partial(_end_ns, grant_id=grant_id, days=new.days))
    return CreditGrant(grant_id, user_id, new.amount, expires_ns, new.scope, new.reason)


def _end_ns(session: Session, grant_id: str, days: int) -> int:
    """Return when a grant expires; a repeated grant keeps its first expiry."""
    found, now_ns = grant_named(session, grant_id), time.time_ns()
    if found is not None and (found.grant.expires_ns - found.created_ns + _DAY_NS // 2) // _DAY_NS == days:
        return found.grant.expires_ns
    return now_ns + days * _DAY_NS


async def _put_in(access: LedgerAccess, user_id: str, amount_nano: int, posting: Posting) -> Posted:
    payments_service = access.payments_service
    if payments_service is None:
        return await _moved(access.ledger, posting)
    if await payments_service.ask(payments_service.payments.topups.context.ledger.is_booked, posting.idem_key):
        return await _moved(access.ledger, posting)
    move = payments_service.moving(user_id, amount_nano)
    await payments_service.ask(move.begin)
    try:
        posted = await _moved(access.ledger, posting)
    except PostingDenied:
        await payments_service.ask(move.end)
        raise
    await payments_service.ask(move.end)
    return posted


async def _moved(ledger: LedgerService, posting: Posting) -> Posted:
    """Book a posting and drop cached balances, so that later payments read them again. Raises LedgerBroken."""
    ledger.inspection.check()
    posted = await ledger.book(posting)
    ledger.leases.funding_lookup.forget_all()
    return posted

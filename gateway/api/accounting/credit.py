"""/accounting/v1/credits: granted by instance admins, and moved by users to their organization's balance."""

import asyncio
from typing import Annotated, Literal, Self

from fastapi import APIRouter
from pydantic import AwareDatetime, Field, model_validator

from accounting.errors import PostingDenied, PostingInvalid
from accounting.ledger.postings import Posted, Posting
from accounting.money import UsdAmount, format_usd
from accounting.rules import grants
from accounting.spending.credit_grants import CreditGrant
from gateway.api.accounting.dependencies import Facts, Key, UserCaller
from gateway.api.accounting.keyed import KeyedRoute, id_of
from gateway.api.authority import AnyCaller, Authority, Operator
from gateway.api.fields import Body, Text, as_ns
from gateway.billing.ledger_service import LedgerService
from gateway.services import Services
from runtime.errors import RequestInvalid
from runtime.times import at

router = APIRouter(prefix="/accounting/v1/credits", route_class=KeyedRoute)

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


class NewPromo(Body):
    """Promotional credits, which expire. They pay for cloud requests, but not on the market."""

    user: Text
    amount: Amount
    expires: AwareDatetime
    scope: Literal["cloud"] = "cloud"
    reason: Text


class IntoPool(Body):
    amount: Amount


class OutOfPool(Body):
    organization: Text
    user: Text
    amount: Amount


@router.post("")
async def give(operator: Operator, key: Key, body: NewCredit) -> Facts:
    """Give credits to a user or an organization balance; the user's debts are paid from them first."""
    credit_id, ledger = id_of("credit", operator.actor.name, key), operator.services.ledger
    if body.user is not None:
        recipient = await asyncio.to_thread(operator.directory.users.user, body.user)
        posted = await ledger.credit(credit_id, recipient.user_id, body.amount, body.reason)
        whose = f"user:{recipient.user_id}"
    else:
        found = await asyncio.to_thread(operator.directory.users.organization, body.organization or "")
        posted = await ledger.credit_pool(credit_id, found.organization_id, body.amount, body.reason)
        whose = f"organization:{found.organization_id}"
    facts = {"id": credit_id, "to": whose, "amount": format_usd(body.amount), "reason": body.reason}
    return await _done(operator, "credit.add", whose, posted, facts)


@router.post("/promo")
async def give_promo(operator: Operator, key: Key, body: NewPromo) -> Facts:
    """Give a user promotional credits that expire.

    Raises RequestInvalid if the credits would expire in the past or too far ahead.
    """
    grant_id = id_of("promo", operator.actor.name, key)
    recipient = await asyncio.to_thread(operator.directory.users.user, body.user)
    expires_ns = as_ns(body.expires)
    assert expires_ns is not None, "the field is there"
    grant = CreditGrant(grant_id, recipient.user_id, body.amount, expires_ns, body.scope, body.reason)
    try:
        posted = await operator.services.ledger.grant(grant)
    except PostingInvalid as error:
        raise RequestInvalid(f"expires: {error}", param="expires") from error
    facts = {
        "id": grant_id,
        "to": f"user:{grant.user_id}",
        "amount": format_usd(grant.amount_nano),
        "scope": grant.scope,
    }
    facts |= {"expires": at(expires_ns), "reason": grant.reason}
    return await _done(operator, "credit.grant", f"user:{grant.user_id}", posted, facts)


@router.post("/pool")
async def fund_pool(authority: AnyCaller, caller: UserCaller, key: Key, body: IntoPool) -> Facts:
    """Transfer own credits to the organization balance; only an operator can return them.

    Those bought by card a short while ago stay, since the bank may take them back.
    """
    move_id, organization_id = id_of("pool", caller.user_id, key), caller.organization_id
    posting = grants.pool_funded(move_id, caller.user_id, organization_id, body.amount)
    posted = await _put_in(authority.services, caller.user_id, body.amount, posting)
    facts = {"id": move_id, "to": f"organization:{organization_id}", "amount": format_usd(body.amount)}
    return await _done(authority, "credit.pool", f"user:{caller.user_id}", posted, facts)


@router.post("/pool/return")
async def return_from_pool(operator: Operator, key: Key, body: OutOfPool) -> Facts:
    """Return credits of an organization balance to a user; the user's debts are paid from them first.

    Raises RequestInvalid if the user is not of that organization.
    """
    move_id, users = id_of("pool-return", operator.actor.name, key), operator.directory.users
    recipient = await asyncio.to_thread(users.user, body.user)
    if recipient.organization_id != body.organization:
        raise RequestInvalid(f"user: {body.user} does not belong to {body.organization}", param="user")
    posting = grants.pool_returned(move_id, recipient.organization_id, recipient.user_id, body.amount)
    posted = await _moved(operator.services.ledger, posting)
    await operator.services.ledger.settle_debt(posting.idem_key, recipient.user_id)
    facts = {"id": move_id, "to": f"user:{recipient.user_id}", "amount": format_usd(body.amount)}
    return await _done(operator, "credit.return", f"organization:{recipient.organization_id}", posted, facts)


async def _put_in(services: Services, user_id: str, amount_nano: int, posting: Posting) -> Posted:
    """Raises PayerFrozen, RequestInvalid for credits that are too recent, and the errors of the ledger."""
    payments_service = services.payments_service
    if payments_service is None:
        return await _moved(services.ledger, posting)
    if await payments_service.ask(payments_service.payments.topups.context.ledger.is_booked, posting.idem_key):
        return await _moved(services.ledger, posting)
    move = payments_service.moving(user_id, amount_nano)
    await payments_service.ask(move.begin)
    try:
        posted = await _moved(services.ledger, posting)
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


async def _done(authority: Authority, action: str, target: str, posted: Posted, facts: Facts) -> Facts:
    """Return the booked facts; record them in the audit log once, even if the request is repeated."""
    add_once = authority.directory.audit.add_once
    await asyncio.to_thread(add_once, authority.actor, action, target, facts, named_by="id")
    return facts | {"event": posted.event_seq}

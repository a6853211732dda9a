"""Manual entries by operators, each posted once: goodwill paid by this gateway, and adjustments."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from accounting.chart import terms_of
from accounting.errors import AccountUnknown, IdempotencyConflict
from accounting.ledger.postings import Posted, Posting
from accounting.money import UsdAmount, format_usd
from accounting.rules.corrections import correction
from accounting.rules.grants import goodwill
from gateway.api.accounting.keyed import id_of
from gateway.api.fields import Text
from gateway.console.access import Operator, Visitor
from gateway.console.forms import read_form
from gateway.console.pages.balance.form_submission import Once, submit
from gateway.console.pages.balance.manual_credits import credits_page
from gateway.console.pages.balance.whose import PATH
from gateway.console.renderer import go
from runtime.errors import RequestInvalid

router = APIRouter(prefix="/credits")

Amount = Annotated[UsdAmount, Field(gt=0)]
# Part of the entry's key, which also names an account.
Incident = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9._@-]+$")]


class GoodwillForm(BaseModel):
    user: Text
    amount: Amount
    reason: Text
    once: Once


class CorrectForm(BaseModel):
    """`incident` identifies the mistake: each incident debits an account only once, for all users together."""

    incident: Incident
    debit: Text
    credit: Text
    amount: Amount
    reason: Text
    once: Once


@router.post("/goodwill")
async def make_good(request: Request, visitor: Operator) -> Response:
    """Give credits that do not expire, paid by this gateway."""
    form = await read_form(request, visitor, GoodwillForm)

    async def work(fields: GoodwillForm) -> str:
        user = await asyncio.to_thread(visitor.directory.users.user, fields.user)
        name = id_of("goodwill", visitor.actor.name, fields.once)
        posting = goodwill(name, user.user_id, fields.amount, fields.reason)
        await _book(visitor, posting, "credit.goodwill", f"user:{user.user_id}", fields.reason)
        await visitor.services.ledger.settle_debt(posting.idem_key, user.user_id)
        return user.user_id

    user_id, form = await submit(form, work)
    if user_id is None:
        return await credits_page(visitor, good=form, status=400)
    return go(visitor, f"{PATH}/users", f"{user_id} received ${form.text('amount')}.")


@router.post("/correct")
async def put_right(request: Request, visitor: Operator) -> Response:
    """Post a separate entry; existing entries are never changed."""
    form = await read_form(request, visitor, CorrectForm)

    async def work(fields: CorrectForm) -> Posted:
        _check_accounts(fields)
        posting = correction(fields.incident, fields.debit, fields.credit, fields.amount, fields.reason)
        try:
            return await _book(visitor, posting, "ledger.correct", f"account:{fields.debit}", fields.reason)
        except IdempotencyConflict:
            raise RequestInvalid(
                f"Incident already used for a different entry on {fields.debit}. Enter another ID.",
                param="incident",
            ) from None

    posted, form = await submit(form, work)
    if posted is None:
        return await credits_page(visitor, fix=form, status=400)
    what = "was posted before" if posted.replayed else "posted"
    return go(visitor, f"{PATH}/credits", f"{form.text('incident')} {what} (entry {posted.event_seq}).")


def _check_accounts(fields: CorrectForm) -> None:
    """Raise RequestInvalid, by field, for a code that is not an account."""
    for name, code in (("debit", fields.debit), ("credit", fields.credit)):
        try:
            terms_of(code)
        except AccountUnknown:
            raise RequestInvalid("Account not found. Examples: user:ann:paid, asset:bank.", param=name) from None


async def _book(visitor: Visitor, posting: Posting, action: str, target: str, reason: str) -> Posted:
    """Post the entry and log it in the audit log, once, as the command line does."""
    ledger = visitor.services.ledger
    posted = await ledger.book(posting)
    ledger.leases.funding_lookup.forget_all()
    moves = [f"{format_usd(leg.amount_nano)} from {leg.debit} to {leg.credit}" for leg in posting.legs]
    facts = {"id": posting.idem_key, "moves": moves, "reason": reason}
    add_once = visitor.directory.audit.add_once
    await asyncio.to_thread(add_once, visitor.actor, action, target, facts, named_by="id")
    return posted

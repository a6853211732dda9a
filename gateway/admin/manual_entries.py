"""Journal entries that operators make by hand, each once for its id: goodwill, adjustments, write-offs, invoices."""

import asyncio
from typing import Annotated

from pydantic import Field

from accounting import chart
from accounting.errors import AccountUnknown, IdempotencyConflict
from accounting.ledger.postings import Posting
from accounting.money import UsdAmount, format_usd
from accounting.rules import grants
from accounting.rules.corrections import correction
from accounting.rules.debts import written_off
from accounting.rules.invoices import invoice_paid
from gateway.admin.credit import Amount
from gateway.admin.fields import Body, Text
from gateway.admin.ledger_access import Booked, LedgerAccess
from runtime.errors import RequestInvalid

# Part of the entry's key, which also names an account.
Incident = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9._@-]+$")]


class Goodwill(Body):
    """Credits that do not expire, paid by this gateway."""

    user: Text
    amount: Amount
    reason: Text


class Correction(Body):
    """`incident` identifies the mistake: each incident debits an account only once, for all users together."""

    incident: Incident
    debit: Text
    credit: Text
    amount: Amount
    reason: Text


class WriteOff(Body):
    """`account` is the debtor's; each incident is written off once."""

    incident: Incident
    account: Text
    amount: Amount
    reason: Text


class Invoice(Body):
    """`accrued` is what the ledger has for the invoice's period."""

    provider: Text
    invoice_id: Text
    amount: UsdAmount
    accrued: UsdAmount


async def give_goodwill(access: LedgerAccess, goodwill_id: str, new: Goodwill) -> Booked:
    """Give goodwill to a user, who pays their debts from it first. Raises NotFound, and the ledger's errors."""
    user = await asyncio.to_thread(access.directory.users.user, new.user)
    posting = grants.goodwill(goodwill_id, user.user_id, new.amount, new.reason)
    booked = await _enter(access, posting, "credit.goodwill", f"user:{user.user_id}", new.reason)
    await access.ledger.settle_debt(posting.idem_key, user.user_id)
    return booked


async def correct(access: LedgerAccess, new: Correction) -> Booked:
    """Post an adjustment as a separate entry; existing entries are never changed.

    Raises RequestInvalid for what is no account and for an incident used for another entry, and the ledger's errors.
    """
    for field, code in (("debit", new.debit), ("credit", new.credit)):
        try:
            chart.terms_of(code)
        except AccountUnknown:
            text = f"{field}: Account not found. Examples: user:ann:paid, asset:bank."
            raise RequestInvalid(text, param=field) from None
    posting = correction(new.incident, new.debit, new.credit, new.amount, new.reason)
    try:
        return await _enter(access, posting, "ledger.correct", f"account:{new.debit}", new.reason)
    except IdempotencyConflict:
        text = f"incident: Incident already used for a different entry on {new.debit}. Enter another ID."
        raise RequestInvalid(text, param="incident") from None


async def forgive(access: LedgerAccess, new: WriteOff) -> Booked:
    """Write off a debt, in full or in part. Raises RequestInvalid for another account, and the ledger's errors."""
    if not chart.is_receivable(new.account):
        text = f"{new.account} is not a debt account; use asset:user_recv:... or asset:seller_recv:..."
        raise RequestInvalid(f"account: {text}", param="account")
    posting = written_off(new.incident, new.account, new.amount, new.reason)
    return await _enter(access, posting, "ledger.forgive", f"account:{new.account}", new.reason)


async def record_invoice(access: LedgerAccess, new: Invoice) -> Booked:
    """Record a paid invoice; a difference from the accrued amount is posted as a variance.

    Raises the errors of the ledger.
    """
    posting = invoice_paid(new.provider, new.invoice_id, new.accrued, new.amount)
    reason = f"billed {format_usd(new.amount)}, accrued {format_usd(new.accrued)}"
    return await _enter(access, posting, "ledger.invoice", f"provider:{new.provider}", reason)


async def _enter(access: LedgerAccess, posting: Posting, action: str, target: str, reason: str) -> Booked:
    posted = await access.ledger.book(posting)
    access.ledger.leases.funding_lookup.forget_all()
    moves = [f"{format_usd(leg.amount_nano)} from {leg.debit} to {leg.credit}" for leg in posting.legs]
    return await access.record(action, target, posted, {"id": posting.idem_key, "moves": moves, "reason": reason})

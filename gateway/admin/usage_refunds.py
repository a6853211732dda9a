"""Refund a request's charge to its payer, completely or in part."""

import asyncio
import time

from sqlalchemy.orm import Session

from accounting import chart
from accounting.errors import IdempotencyConflict, InsufficientCredit, LedgerBusy
from accounting.ledger.postings import Posting
from accounting.money import format_usd
from accounting.rules.charged import Charged
from accounting.rules.usage_refunds import refund
from accounting.spending.charges import event_legs, find_charge, find_refund_parties
from gateway.admin.credit import Amount
from gateway.admin.fields import Body, Text
from gateway.admin.ledger_access import LedgerAccess
from gateway.billing.ledger_service import LedgerService
from runtime.errors import Conflict, NotFound, RequestInvalid

_TRIES_MAX = 8


class UsageRefund(Body):
    """Without `amount`, the full charge is refunded. `provider_credits`: the cloud provider will not bill it."""

    request_id: Text
    amount: Amount | None = None
    reason: Text
    provider_credits: bool = False


async def refund_usage(access: LedgerAccess, asked: UsageRefund) -> tuple[int, int]:
    """Refund a request's charge, once; return the charge and what is refunded of it, in nano-USD.

    Raises NotFound, Conflict for another amount than was refunded before, RequestInvalid, the errors of the ledger,
    and LedgerBusy if the charge changes during each of several tries.
    """
    ledger = access.ledger
    for _try in range(_TRIES_MAX):
        charge, amount_nano, posting = await ledger.look(lambda session: _asked(session, asked))
        if posting is None:
            break
        try:
            await ledger.book(posting)
        except InsufficientCredit:
            continue  # A seller was paid meanwhile: read the balances again.
        except IdempotencyConflict:
            continue  # Another caller refunded it a moment ago.
        break
    else:
        raise LedgerBusy(f"the charge of request {asked.request_id} changes too quickly; try again")
    facts = {"request": asked.request_id, "amount": format_usd(amount_nano), "reason": asked.reason}
    add_once, target = access.directory.audit.add_once, f"request:{asked.request_id}"
    await asyncio.to_thread(add_once, access.actor, "usage.refund", target, facts, named_by="request")
    await _settle_debts(ledger, asked.request_id)
    return charge.charge_nano, amount_nano


async def _settle_debts(ledger: LedgerService, request_id: str) -> None:
    """Use refunded credits to pay the debts of their users first."""
    key = f"refund:{request_id}"
    legs = await ledger.look(lambda session: event_legs(session, key))
    for user_id in {owner for leg in legs if (owner := chart.owner_of(leg.credit))}:
        await ledger.settle_debt(key, user_id)


def _asked(session: Session, body: UsageRefund) -> tuple[Charged, int, Posting | None]:
    """Return the charge, the amount to refund, and the posting for it, or None if it is booked already.

    Raises NotFound, Conflict, RequestInvalid.
    """
    charge = find_charge(session, body.request_id)
    if charge is None:
        raise NotFound(f"request {body.request_id} has no charge that could be refunded")
    amount_nano = charge.charge_nano if body.amount is None else body.amount
    if amount_nano > charge.charge_nano:
        raise RequestInvalid(
            f"amount: at most the charge of {format_usd(charge.charge_nano)} can be refunded", param="amount"
        )
    booked = event_legs(session, f"refund:{body.request_id}")
    if booked:
        given_nano = sum(leg.amount_nano for leg in booked if leg.debit == charge.clearing)
        if given_nano != amount_nano:
            raise Conflict(f"amount: {format_usd(given_nano)} was already refunded", param="amount")
        return charge, amount_nano, None
    standing = find_refund_parties(session, charge, time.time_ns())
    event = refund(charge, amount_nano, body.reason, standing, provider_credits=body.provider_credits)
    return charge, amount_nano, event

"""A marketplace: allocations of credits, what a seller earned, suspension and forfeiture, texts for a dispute."""

import base64

from sqlalchemy.orm import Session

from accounting import chart
from accounting.ledger.balances import available
from accounting.money import format_usd
from accounting.payments.errors import PayerFrozen
from gateway.admin.authority import Authority
from gateway.admin.fields import Facts
from gateway.admin.marketplace_requests import NewAllocation, NewDispute, ShownPrompt
from gateway.billing.asked import id_of
from gateway.billing.ledger_service import LedgerService
from gateway.errors import PolicyForbids
from gateway.identity.caller import Caller
from market.errors import RecordInvalid
from market.marketplace.allocations import AllocationRequest
from market.marketplace.disputes import Brought
from market.marketplace.marketplace import Marketplace
from market.marketplace.tables import DisputeRow
from market.marketplace.texts import ChoiceText
from market.protocol.audits.prompts import Shown
from market.protocol.records.envelope import Record, open_record
from market.protocol.sealing.agreement import Keys
from runtime.errors import RequestInvalid


async def show_seller(marketplace: Marketplace, account: str) -> Facts:
    """Return a seller's account: its selling identities, and their earnings.

    `lacking` is what a new seller still has to show; all of it is zero after the new-seller period.
    """
    earned = await marketplace.ask(_earned, marketplace, account)
    probation = await marketplace.ask(marketplace.earnings.probation_of, account)
    return {
        "account": account,
        "identities": await marketplace.ask(marketplace.sellers.identities_of, account),
        "suspended": await marketplace.ask(marketplace.sellers.suspended_reason, account),
        "earned": {name: format_usd(nano) for name, nano in earned.items()},
        "probation": not probation.is_over,
        "lacking": {"jobs": probation.jobs, "buyers": probation.buyers, "days": probation.days},
    }


def _earned(marketplace: Marketplace, user_id: str) -> dict[str, int]:
    codes = {
        "maturing": chart.seller_maturing(user_id),
        "payable": chart.seller_payable(user_id),
        "reserve": chart.seller_reserve(user_id),
        "owed": chart.seller_receivable(user_id),
    }
    session: Session
    with marketplace.context.read() as session:
        found = available(session, list(codes.values()))
    return {name: found[code] for name, code in codes.items()}


async def allocate(
    marketplace: Marketplace, ledger: LedgerService, caller: Caller, once: str, new: NewAllocation
) -> bytes:
    """Reserve credits for a seller, once; the returned record proves it to the seller.

    Raises RequestInvalid if `hours` is above the marketplace's limit, LedgerBroken, PayerFrozen, PolicyForbids, and
    the errors of `Allocations.issue`.
    """
    await _check_buyer(ledger, caller)
    most = marketplace.context.terms.allocation_hours_max
    if new.hours > most:
        raise RequestInvalid(f"hours is too large. Credits are allocated for at most {most} hours.", param="hours")
    allocation_id = f"a-{id_of('allocation', caller.user_id, once)}"
    allocation = AllocationRequest(allocation_id, caller.payer, new.buyer, new.seller, new.limit, new.hours)
    return await marketplace.ask(marketplace.allocations.issue, allocation)


async def _check_buyer(ledger: LedgerService, caller: Caller) -> None:
    """Raises LedgerBroken, PayerFrozen, PolicyForbids."""
    if "market" not in caller.lanes:
        raise PolicyForbids("This key may not buy on the market. Use one with the lane market.")
    if caller.privacy != "public" or caller.models is not None or caller.regions is not None:
        raise PolicyForbids(
            "The marketplace cannot check an allocation's requests. Use a key without privacy, model or region limits."
        )
    await ledger.inspection.looked()
    ledger.inspection.check()
    if why := ledger.frozen_why(caller.user_id):
        raise PayerFrozen(caller.user_id, why)
    if any(quota.measure == "spend" for quota in caller.quotas):
        raise PolicyForbids(
            "A key with a budget cannot allocate, since the budget could not limit it. Use a key without one."
        )


async def suspend(marketplace: Marketplace, authority: Authority, user: str, why: str | None) -> Facts:
    """Suspend a seller, or with None reinstate it: suspended it gets no allocations, and its earnings stay pending."""
    facts: Facts = {"seller": user, "suspended": why}
    await authority.record("market.suspend", f"user:{user}", facts)
    await marketplace.ask(marketplace.sellers.suspend, user, why)
    return facts


async def forfeit(marketplace: Marketplace, authority: Authority, user: str, why: str) -> Facts:
    """On proof of fraud, return pending earnings to the buyers, and suspend the seller."""
    await authority.record("market.forfeit", f"user:{user}", {"seller": user, "why": why})
    sales = await marketplace.ask(marketplace.forfeiture.forfeit, user, why)
    return {"seller": user, "why": why, "sales": sales}


async def bring(marketplace: Marketplace, user_id: str, body: NewDispute) -> DisputeRow:
    """Submit a text, the prompt or receipts.

    The first submission opens the dispute, for a fee that is kept if it loses. Raises RequestInvalid, and the errors
    of `Disputes.bring`.
    """
    receipts = tuple(read_record(raw, "receipts") for raw in body.receipts)
    digest = read_record(body.allocation, "allocation").digest
    texts = {n: ChoiceText(text.content, text.reasoning, text.calls) for n, text in body.texts.items()}
    prompt = _shown(body.prompt) if body.prompt else None
    brought = Brought(digest, body.lane, texts, prompt, receipts)
    row = await marketplace.ask(marketplace.disputes.bring, user_id, brought)
    if row.status == "decided":
        await marketplace.ask(marketplace.settlements.submit, digest, ())
    return row


def read_record(raw: str, param: str) -> Record:
    """Return a signed record. Raises RequestInvalid."""
    try:
        return open_record(raw.encode())
    except RecordInvalid as error:
        raise RequestInvalid(f"{param}: {error}", param=param, code="record_invalid") from None


def _shown(prompt: ShownPrompt) -> Shown:
    keys = Keys(bytes.fromhex(prompt.key), bytes.fromhex(prompt.nonce))
    return Shown(base64.b64decode(prompt.sealed), keys)

"""/market/v1 at a marketplace: its terms, allocations, settlements. Amounts are decimal strings in USD."""

from collections.abc import Callable

from fastapi import APIRouter, Request

from accounting.money import format_usd
from gateway.admin import marketplace as admin
from gateway.admin.fields import Facts
from gateway.admin.marketplace import read_record
from gateway.admin.marketplace_requests import NewAllocation, NewSettlement
from gateway.api.accounting.dependencies import Key, UserCaller
from gateway.api.accounting.keyed import KeyedRoute
from gateway.api.marketplace import disputes, sellers
from gateway.api.marketplace.relay import relay_router
from gateway.api.marketplace.relay_factory import relay_of
from gateway.app_state import Ledger, Marketplace
from market.marketplace.marketplace import SETTLEMENT_RECORDS
from market.marketplace.settlements import Settled
from market.network.gossip_routes import router as gossip
from market.network.throttle import network_of
from runtime.errors import RateLimited

keyed = APIRouter(prefix="/market/v1", route_class=KeyedRoute)
plain = APIRouter(prefix="/market/v1")


def marketplace_routers(marketplace: Marketplace, is_closing: Callable[[], bool]) -> list[APIRouter]:
    """Return every router of a marketplace in matching order; `is_closing` tells whether the gateway is stopping."""
    own = [sellers.keyed, sellers.plain, keyed, plain, disputes.router, gossip(marketplace.keeper)]
    return [*own, relay_router(relay_of(marketplace, is_closing))]


@plain.get("/marketplace")
async def show_marketplace(marketplace: Marketplace, ledger: Ledger) -> Facts:
    """Show the marketplace's identity and terms, and the newest block of its ledger, which receipts may name.

    `tokenizers` are the SHA-256 of those that it counts by in disputes.
    """
    terms, checkpoint = marketplace.context.terms, ledger.checkpoint
    return {
        "identity": marketplace.context.speaker.id,
        "statements": [record.raw.decode() for record in marketplace.context.speaker.statements],
        "fee_bps": terms.fee_bps,
        "ledger_checkpoint": str(checkpoint) if checkpoint else None,
        "allocation_hours_max": terms.allocation_hours_max,
        "probation": {
            "days": terms.probation_days,
            "jobs": terms.probation_jobs,
            "buyers": terms.probation_buyers,
            "reserve_bps": terms.reserve_bps,
            "maturity_days": terms.maturity_days_new,
        },
        "maturity_days": terms.maturity_days,
        "tokenizers": sorted(marketplace.tokenizers),
    }


@keyed.post("/allocations")
async def allocate(
    marketplace: Marketplace, ledger: Ledger, caller: UserCaller, key: Key, body: NewAllocation
) -> Facts:
    """Reserve credits for a seller; the answer's record proves it to the seller."""
    raw = await admin.allocate(marketplace, ledger, caller, key, body)
    return {"allocation": raw.decode()}


@plain.post("/settlements")
async def settle(marketplace: Marketplace, body: NewSettlement, request: Request) -> Facts:
    """Accept what buyer and seller have signed, from any caller, any number of times.

    Raises RateLimited if the caller's network sends too many records.
    """
    network = network_of(request.client.host if request.client else "")
    if not marketplace.records.takes(network, SETTLEMENT_RECORDS + len(body.records) + len(body.statements)):
        raise RateLimited("Too many records from this network. Send them again in a minute.", 60)
    digest = read_record(body.allocation, "allocation").digest
    records, statements = ([raw.encode() for raw in raws] for raws in (body.records, body.statements))
    return _settled(await marketplace.ask(marketplace.settlements.submit, digest, records, statements))


def _settled(settled: Settled) -> Facts:
    reckoning = settled.reckoning
    return {
        "channel": settled.channel,
        "confirmed": format_usd(reckoning.confirmed_nano),
        "claimed": format_usd(reckoning.claimed_nano),
        "disputed": format_usd(reckoning.disputed_nano),
        "settled": format_usd(settled.settled_nano),
    }

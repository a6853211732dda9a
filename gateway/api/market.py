"""/admin/market: this gateway's sales for its own ledger, and the sellers that it knows."""

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field

from accounting.money import UsdAmount, format_usd
from accounting.rules.sales import sold
from gateway.admin.fields import Body, Text
from gateway.api.authority import Operator
from gateway.app_state import Lanes, Ledger
from gateway.lanes.market.lane import MarketLane
from market.protocol.channels.terms import LANES_MAX
from market.protocol.offers import OnOffer
from runtime.errors import NotFound

router = APIRouter()


class Sale(Body):
    """One request's final receipt: its amount, including the marketplace's fee."""

    channel: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    lane: Annotated[int, Field(ge=0, lt=LANES_MAX)]
    seq: Annotated[int, Field(ge=1, lt=2**53)]
    amount: UsdAmount
    model: Text


@router.post("/market/sales")
async def book_sale(_: Operator, ledger: Ledger, sale: Sale) -> dict[str, str | int]:
    """Post the amount of a request sold on the market, once: another amount for the same request is refused."""
    posting = sold(sale.channel, sale.lane, sale.seq, sale.amount, sale.model)
    posted = await ledger.book(posting)
    return {"event": posted.event_seq, "amount": format_usd(sale.amount)}


@router.get("/market/sellers")
async def show_sellers(_: Operator, lanes: Lanes) -> dict[str, Any]:
    """List known sellers with their audits; no audit proves a model.

    Raises NotFound if this gateway does not buy on the market.
    """
    lane = lanes.get("market")
    if not isinstance(lane, MarketLane):
        raise NotFound("This gateway does not buy on the market, because market.buy_for is empty.")
    offers = lane.told
    others = [each for each in offers.excluded if each.reason != "suspended"]
    return {
        "sellers": [_row(row) for row in offers.offers],
        "not_bought": [{"seller": each.seller, "model": each.model, "reason": each.reason} for each in others],
    }


def _row(row: OnOffer) -> dict[str, Any]:
    return {
        "seller": row.seller,
        "model": row.model,
        "quantization": row.quantization,
        "prompt_usd_per_mtok": format_usd(row.prompt_nano),
        "completion_usd_per_mtok": format_usd(row.completion_nano),
        "context_tokens": row.context_tokens,
        "region": row.region,
        "keeps_data": row.keeps_data,
        "clearance": row.clearance,
        "looked_at": row.tier,
        "answered": round(row.good, 2),
        "failed": round(row.bad, 2),
        "audits_passed": round(row.audits_good, 2),
        "audits_failed": round(row.audits_bad, 2),
        "is_newcomer": row.is_probation,
        "suspended_why": row.suspended_why or None,
    }

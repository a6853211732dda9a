"""/admin/market/sellers: known sellers, their records, and suspended ones."""

from typing import Any

from fastapi import APIRouter

from accounting.money import format_usd
from gateway.api.authority import Operator
from gateway.lanes.market.lane import MarketLane
from market.protocol.offers import OnOffer
from runtime.errors import NotFound

router = APIRouter()


@router.get("/market/sellers")
async def show_sellers(operator: Operator) -> dict[str, Any]:
    """List known sellers with their audits; no audit proves a model.

    Raises NotFound if this gateway does not buy on the market.
    """
    lane = operator.services.lanes.get("market")
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

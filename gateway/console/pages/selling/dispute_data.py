"""Data for a dispute's page: what both sides have signed on a sub-channel; and submitting a text."""

from typing import Any

from gateway.admin.marketplace import bring
from gateway.admin.marketplace_requests import DisputedText, NewDispute
from market.marketplace.dispute_state import LaneStanding, claim_of, disputed_lane, signed_counts
from market.marketplace.marketplace import Marketplace
from market.marketplace.settlements import found as allocation_found
from market.marketplace.tables import DisputeRow
from market.protocol.audits.conduct import fee_nano


async def bring_text(
    marketplace: Marketplace, user_id: str, raw: str, lane: int, content: str, reasoning: str
) -> DisputeRow:
    """Submit a text as `POST /market/v1/disputes` does, with its errors; `raw` is the allocation's record."""
    text = DisputedText(content=content.replace("\r\n", "\n"), reasoning=reasoning.replace("\r\n", "\n"))
    return await bring(marketplace, user_id, NewDispute(allocation=raw, lane=lane, texts={0: text}))


def facts_of_lane(marketplace: Marketplace, user_id: str, allocation: str, lane: int) -> dict[str, Any]:
    """Return the sub-channel's state and both sides' counts. Raises NotRegistered."""
    known = {standing.lane: (standing, row) for standing, row in marketplace.disputes.of(user_id, allocation)}
    standing: LaneStanding | None
    standing, row = known.get(lane, (None, None))
    if standing is None or standing.standing != "disputed":
        return {"standing": standing, "row": row, "claim": None, "signed": None, "fee_nano": 0}
    with marketplace.context.read() as session:
        about = disputed_lane(marketplace.context, allocation_found(session, allocation), lane)
    claim, signed = claim_of(about), signed_counts(about)
    return {
        "standing": standing,
        "row": row,
        "claim": claim.receipt,
        "signed": signed.receipt if signed else None,
        "fee_nano": fee_nano(standing.nano),
    }

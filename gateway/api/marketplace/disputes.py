"""/market/v1/disputes: both sides submit the delivered text, or show the prompt, and the marketplace counts it."""

from fastapi import APIRouter

from accounting.money import format_usd
from gateway.admin import marketplace as admin
from gateway.admin.fields import Facts
from gateway.admin.marketplace_requests import Id, NewDispute
from gateway.api.accounting.dependencies import UserCaller
from gateway.app_state import Marketplace
from market.marketplace.dispute_state import LaneStanding
from market.marketplace.tables import DisputeRow
from runtime.times import at

router = APIRouter(prefix="/market/v1/disputes")


@router.post("")
async def bring(marketplace: Marketplace, caller: UserCaller, body: NewDispute) -> Facts:
    """Submit a text, the prompt or receipts.

    The first submission opens the dispute, for a fee that is kept if it loses.
    """
    return _facts(await admin.bring(marketplace, caller.user_id, body))


@router.get("/{allocation}")
async def show_lanes(marketplace: Marketplace, caller: UserCaller, allocation: Id) -> Facts:
    """Show the state of each sub-channel of an allocation to its buyer and seller; `allocation` is its record's digest.

    Unsettled lanes come with the records behind them and the buyer's statements about its keys, so that the result
    can be verified without trusting the marketplace.
    """
    lanes = await marketplace.ask(marketplace.disputes.of, caller.user_id, allocation)
    statements = await marketplace.ask(marketplace.disputes.statements_of, allocation)
    return {
        "lanes": [_lane(standing) | {"dispute": _facts(row) if row else None} for standing, row in lanes],
        "statements": [record.raw.decode() for record in statements],
    }


def _lane(standing: LaneStanding) -> Facts:
    return {
        "lane": standing.lane,
        "seq": standing.seq,
        "receipt": standing.receipt,
        "standing": standing.standing,
        "amount": format_usd(standing.nano),
        "records": [record.raw.decode() for record in standing.records],
    }


def _facts(row: DisputeRow) -> Facts:
    return {
        "id": row.id,
        "lane": row.sub_channel,
        "seq": row.seq,
        "opened_by": row.opened_by,
        "status": row.status,
        "fee": format_usd(row.fee_nano),
        "answer_by": at(row.answer_due_ns),
        "reason": row.reason,
        "loser": row.loser,
        "amount": None if row.amount_nano is None else format_usd(row.amount_nano),
    }

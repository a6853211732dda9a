"""/market/v1/disputes: both sides submit the delivered text, or show the prompt, and the marketplace counts it."""

import base64

from fastapi import APIRouter

from accounting.money import format_usd
from gateway.api.accounting.dependencies import UserCaller
from gateway.api.marketplace.dependencies import Facts, Open, read_record
from gateway.api.marketplace.forms import Id, NewDispute, ShownPrompt
from market.marketplace.dispute_state import LaneStanding
from market.marketplace.disputes import Brought
from market.marketplace.tables import DisputeRow
from market.marketplace.texts import ChoiceText
from market.protocol.audits.prompts import Shown
from market.protocol.sealing.agreement import Keys
from runtime.times import at

router = APIRouter(prefix="/market/v1/disputes")


@router.post("")
async def bring(marketplace: Open, caller: UserCaller, body: NewDispute) -> Facts:
    """Submit a text or the prompt.

    The first submission opens the dispute, for a fee that is kept if it loses.
    """
    digest = read_record(body.allocation, "allocation").digest
    texts = {n: ChoiceText(text.content, text.reasoning, text.calls) for n, text in body.texts.items()}
    prompt = _shown(body.prompt) if body.prompt else None
    brought = Brought(digest, body.lane, texts, prompt)
    row = await marketplace.ask(marketplace.disputes.bring, caller.user_id, brought)
    if row.status == "decided":
        await marketplace.ask(marketplace.settlements.submit, digest, ())
    return _facts(row)


@router.get("/{allocation}")
async def show_lanes(marketplace: Open, caller: UserCaller, allocation: Id) -> Facts:
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


def _shown(prompt: ShownPrompt) -> Shown:
    keys = Keys(bytes.fromhex(prompt.key), bytes.fromhex(prompt.nonce))
    return Shown(base64.b64decode(prompt.sealed), keys)


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

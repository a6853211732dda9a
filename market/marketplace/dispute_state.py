"""Read what is disputed on a lane: both sides' statements, and the state of each lane."""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from msgspec.structs import replace as with_fields

from market.errors import MarketplaceRefuses
from market.marketplace.context import MarketplaceContext
from market.marketplace.settlements import decided_on, known, parties
from market.marketplace.tables import AllocationRow
from market.protocol.channels.channel import Channel, Lane, due
from market.protocol.channels.evidence import evidence
from market.protocol.channels.statements import Delivery
from market.protocol.records.envelope import Record

_NOTHING = "0" * 64

Standing = Literal["claimed", "disputed", "settled"]


@dataclass(frozen=True, slots=True)
class LaneStanding:
    """The state of a lane's newest request. `receipt` is the digest of the seller's receipt.

    `nano`, the open amount, follows from `records`. `claimed` waits for the buyer's answer or its deadline.
    `settled` is never disputed again.
    """

    lane: int
    seq: int
    receipt: str
    standing: Standing
    nano: int
    records: tuple[Record, ...]


def standings(
    context: MarketplaceContext, allocation: AllocationRow, over: Collection[tuple[int, int]]
) -> list[LaneStanding]:
    """Return the state of every lane with a receipt of the seller.

    `over` has decided disputes, by lane and seq.
    """
    terms, decided = parties(context, allocation), decided_on(allocation)
    found = []
    for n, lane in known(allocation, terms).lanes.items():
        if lane.claim is None:
            continue
        seq, open_due, before = lane.claim.receipt.seq, due(lane), decided.get(n)
        is_due = before is not None and before.seq >= seq and before.amount_nano >= lane.claim.amount_nano
        nano = 0 if is_due or (n, seq) in over else open_due.claimed_nano + open_due.disputed_nano
        standing: Standing = "disputed" if open_due.disputed_nano else "claimed"
        records = tuple(evidence(Channel(terms, {n: lane}))) if nano else ()
        found.append(LaneStanding(n, seq, lane.claim.digest, standing if nano else "settled", nano, records))
    return found


def disputed_lane(context: MarketplaceContext, allocation: AllocationRow, number: int) -> Lane:
    """Return the lane as it is known now. Raises MarketplaceRefuses if nothing is disputed on it."""
    lane = lane_of(context, allocation, number)
    if not due(lane).disputed_nano:
        raise MarketplaceRefuses(
            "not_disputed", "buyer and seller have not signed different counts on this sub-channel"
        )
    return lane


def lane_of(context: MarketplaceContext, allocation: AllocationRow, number: int) -> Lane:
    return known(allocation, parties(context, allocation)).lanes.get(number, Lane())


def is_about(lane: Lane, seq: int) -> bool:
    """Return whether the request `seq` is disputed on the lane."""
    return bool(due(lane).disputed_nano) and claim_of(lane).receipt.seq == seq


def dispute_id(allocation: str, number: int, lane: Lane) -> str:
    """Return the id, made from the subject, so that two parties that open a dispute at once open the same one."""
    name = f"{allocation}:{number}:{claim_of(lane).receipt.seq}"
    return f"d-{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def claim_of(lane: Lane) -> Delivery:
    assert lane.claim is not None, "a disputed lane has a claim"
    return lane.claim


def signed_counts(lane: Lane) -> Delivery | None:
    """Return the buyer's own receipt for the request, if there is one."""
    claim, assent = claim_of(lane), lane.assent
    is_its_own = isinstance(assent, Delivery) and assent.promise.digest == claim.promise.digest
    return assent if isinstance(assent, Delivery) and is_its_own else None


def buyers_word(lane: Lane) -> Delivery:
    """Return the buyer's statement about the request.

    A buyer that only went on to the next one denies any delivery.
    """
    return signed_counts(lane) or _word(lane, completion_tokens=0, transcript=_NOTHING)


def admitted_word(lane: Lane) -> Delivery:
    """Return the buyer's statement if the prompt can be shown: going on to the next request admits at least a sum.

    A sum does not say how much was prompt and how much answer. Taken as all answer, it denies the prompt. A buyer
    that means something else can submit a receipt.
    """
    if found := signed_counts(lane):
        return found
    voucher, most_tokens = claim_of(lane).promise.voucher, claim_of(lane).receipt.completion_tokens
    admitted_nano = (lane.assent.amount_nano if lane.assent else 0) - voucher.base_nano
    if admitted_nano <= 0:
        return buyers_word(lane)
    price_nano, tokens = int(voucher.prices.completion), most_tokens
    if price_nano:
        tokens = min(most_tokens, max(1, (admitted_nano - voucher.prices.request) * 10**6 // price_nano))
    return _word(lane, prompt_tokens=0, cached_tokens=0, completion_tokens=tokens, transcript=_NOTHING)


def _word(lane: Lane, **counts: int | str) -> Delivery:
    """Return the claim with other counts, as if the buyer had signed it. Its voucher stands for its signature."""
    claim = claim_of(lane)
    return replace(claim, receipt=with_fields(claim.receipt, **counts), record=claim.promise.record)

"""Book allocations of the market: credits reserved for one seller, from which deliveries are drawn turn by turn.

An allocation is held like a request (`accounting.rules.market.hold`). Each draw books what is due beyond all draws
before it. It takes that amount from the reservation, pays the seller and the marketplace, and reserves the rest again.
In the end the reaper releases what was not drawn. Draws are numbered, so only one of two concurrent draws
succeeds. The fee is computed from the sum, so it is the same for any number of draws.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from accounting import chart
from accounting.errors import PostingInvalid
from accounting.ledger.postings import EventKind, Leg, Posting
from accounting.money import checked_nano
from accounting.rules.market import BPS
from accounting.rules.moves import moved
from accounting.rules.parts import HeldPart, Share, between, pay_unheld, reserve_funds, take


@dataclass(frozen=True, slots=True)
class Allocated:
    """`limit_nano` of a buyer's credits, reserved for a seller until `expires_ns`. Both are users here.

    Our fee is `fee_bps` hundredths of a percent of what is drawn. After the credits are released, the buyer owes
    any further draw.
    """

    allocation_id: str
    buyer_id: str
    seller_id: str
    limit_nano: int
    fee_bps: int
    expires_ns: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """The state of an allocation: the number of draws, their sum, and the parts still reserved, in order."""

    turns: int = 0
    amount_nano: int = 0
    parts: tuple[HeldPart, ...] = ()


def draw(allocated: Allocated, drawn: Drawn, due_nano: int) -> Posting | None:
    """Book what is due beyond earlier draws: `user|pool:paid -> clearing:market -> seller:maturing` and our fee.

    Reserve the rest again, until the same time. Return None if nothing more is due.

    Raises:
        PostingInvalid: more is due than is reserved.
    """
    more_nano = _more(allocated, drawn, due_nano)
    if not more_nano:
        return None
    held_nano = sum(part.amount_nano for part in drawn.parts)
    if more_nano > held_nano:
        raise PostingInvalid(f"{more_nano} nano are due on {allocated.allocation_id!r}, {held_nano} are reserved")
    parts = [Share(part.account, part.amount_nano) for part in drawn.parts]
    rest = between(parts, more_nano, held_nano - more_nano)
    legs = (
        *take(drawn.parts, chart.CLEARING_MARKET, more_nano),
        *_paid_out(allocated, drawn, more_nano),
        *reserve_funds(rest, chart.CLEARING_MARKET, allocated.expires_ns),
    )
    return _drawn("draw", allocated, drawn, legs)


def draw_late(
    allocated: Allocated, drawn: Drawn, due_nano: int, *, covered: Sequence[Share] = ()
) -> Posting | None:
    """Book what is due after the reaper's release: from `covered`, and the rest as a debt of the buyer.

    It continues the numbering of the draws. The ledger takes it only after the reaper. Return None if nothing is
    due.
    """
    more_nano = _more(allocated, drawn, due_nano)
    if not more_nano:
        return None
    debt = chart.user_receivable(allocated.buyer_id)
    paid = pay_unheld(more_nano, covered, debt, chart.CLEARING_MARKET)
    return _drawn("late", allocated, drawn, (*paid, *_paid_out(allocated, drawn, more_nano)))


def _more(allocated: Allocated, drawn: Drawn, due_nano: int) -> int:
    """Return what is due beyond earlier draws, within the allocation and never below zero."""
    return max(0, min(checked_nano(due_nano), allocated.limit_nano) - drawn.amount_nano)


def _paid_out(allocated: Allocated, drawn: Drawn, more_nano: int) -> tuple[Leg, ...]:
    before_nano, after_nano = drawn.amount_nano, drawn.amount_nano + more_nano
    fee_nano = after_nano * allocated.fee_bps // BPS - before_nano * allocated.fee_bps // BPS
    seller = chart.seller_maturing(allocated.seller_id)
    return (
        *moved(chart.CLEARING_MARKET, seller, more_nano - fee_nano),
        *moved(chart.CLEARING_MARKET, chart.INCOME_MARKET_FEE, fee_nano),
    )


def _drawn(kind: EventKind, allocated: Allocated, drawn: Drawn, legs: tuple[Leg, ...]) -> Posting:
    name = allocated.allocation_id
    return Posting(f"settle:{name}:{drawn.turns + 1}", kind, name, legs)

"""Allocations of the market: credits put aside for one seller, from which deliveries are drawn turn by turn.

An allocation is held as a request is (`accounting.rules.market.hold`). Each draw books what is due beyond all
draws before it: it takes that from what is put aside, pays seller and house, and puts the rest aside anew. What
nobody has drawn in the end the reaper gives back. Draws are numbered, so that two who draw at once cannot both be
right, and the fee is that of the sum, so that the same sum comes to the same fee in however many draws.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from accounting import chart
from accounting.errors import PostingInvalid
from accounting.ledger.postings import EventKind, Leg, Posting
from accounting.money import checked_nano
from accounting.rules.market import BPS
from accounting.rules.moves import moved
from accounting.rules.parts import Part, Share, between, pay_unheld, put_aside, take


@dataclass(frozen=True, slots=True)
class Allocated:
    """`limit_nano` of a buyer's credits are put aside for a seller until `expires_ns`; both are users here.

    Our fee is `fee_bps` hundredths of a percent of what is drawn. Whatever is drawn once the credits were given
    back, the buyer owes.
    """

    allocation_id: str
    buyer_id: str
    seller_id: str
    limit_nano: int
    fee_bps: int
    expires_ns: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """How far an allocation is drawn: by so many events, to so much; `parts` are put aside still, in order."""

    turns: int = 0
    amount_nano: int = 0
    parts: tuple[Part, ...] = ()


def draw(allocated: Allocated, drawn: Drawn, due_nano: int) -> Posting | None:
    """Book what is due beyond what was drawn: `user|pool:paid -> clearing:market -> seller:maturing` and our fee.

    The rest is put aside anew, until the same moment. None where nothing more is due.

    Raises:
        PostingInvalid: more than is put aside.
    """
    more_nano = _more(allocated, drawn, due_nano)
    if not more_nano:
        return None
    held_nano = sum(part.amount_nano for part in drawn.parts)
    if more_nano > held_nano:
        raise PostingInvalid(f"{more_nano} nano are due on {allocated.allocation_id!r}, {held_nano} are put aside")
    parts = [Share(part.account, part.amount_nano) for part in drawn.parts]
    rest = between(parts, more_nano, held_nano - more_nano)
    legs = (
        *take(drawn.parts, chart.CLEARING_MARKET, more_nano),
        *_paid_out(allocated, drawn, more_nano),
        *put_aside(rest, chart.CLEARING_MARKET, allocated.expires_ns),
    )
    return _drawn("draw", allocated, drawn, legs)


def draw_late(
    allocated: Allocated, drawn: Drawn, due_nano: int, *, covered: Sequence[Share] = ()
) -> Posting | None:
    """Book what is due once the reaper has given the rest back: from `covered`; what is missing the buyer owes.

    It counts on as the draws before it do; the books take it only after the reaper. None where nothing is due.
    """
    more_nano = _more(allocated, drawn, due_nano)
    if not more_nano:
        return None
    debt = chart.user_receivable(allocated.buyer_id)
    paid = pay_unheld(more_nano, covered, debt, chart.CLEARING_MARKET)
    return _drawn("late", allocated, drawn, (*paid, *_paid_out(allocated, drawn, more_nano)))


def _more(allocated: Allocated, drawn: Drawn, due_nano: int) -> int:
    """What is due beyond what was drawn, within the allocation: below that it never falls."""
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

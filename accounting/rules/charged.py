"""Read what the ledger recorded about one request's charge: the payers and recipients.

Refunds rely on this alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from accounting import chart
from accounting.ledger.postings import Leg
from accounting.rules.parts import Share, between

_MOVES = ("single", "post")


@dataclass(frozen=True, slots=True)
class Charged:
    """The charge of a request: `paid -> clearing -> partner | income`, amounts in nano-USD.

    `paid` are the accounts that paid, in their order, each with its share of this charge. `partner` is the seller
    or provider that delivered, or "" if that is no longer known. `beyond_nano` is what a provider got on top, at
    our expense.
    """

    request_id: str
    clearing: str
    paid: tuple[Share, ...]
    partner: str
    partner_nano: int
    income_nano: int
    beyond_nano: int = 0

    @property
    def charge_nano(self) -> int:
        return self.partner_nano + self.income_nano


@dataclass(frozen=True, slots=True)
class RequestCharge:
    """One of the requests that an event ended, from its usage row.

    `before_nano` is the sum of the charges of the event's requests with smaller ids. The payers of an event are
    assigned to its requests in that order. So no two refunds return the same credits, in any order, and concurrent
    refunds need not know of each other.
    """

    charge_nano: int
    cost_nano: int
    provider: str
    before_nano: int = 0


def charged(request_id: str, legs: Sequence[Leg]) -> Charged | None:
    """Read the capture of one request, in time or late, cloud or market; None if nothing was charged."""
    into = next((leg.credit for leg in legs if chart.is_clearing(leg.credit) and _has_moved(leg)), None)
    if into is None:
        return None
    got = [leg for leg in legs if leg.debit == into and leg.phase == "single"]
    partners = [leg for leg in got if not chart.is_income(leg.credit)]
    partner = partners[0].credit if partners else _beyond_of(legs)
    return Charged(
        request_id,
        into,
        _paid(legs, into),
        partner,
        sum(leg.amount_nano for leg in partners),
        sum(leg.amount_nano for leg in got if chart.is_income(leg.credit)),
        sum(leg.amount_nano for leg in legs if leg.debit == chart.EXPENSE_BURST_VARIANCE),
    )


def charged_together(request_id: str, legs: Sequence[Leg], ended: RequestCharge) -> Charged | None:
    """Read one request of a lease's event that ended several requests; None if nothing was charged."""
    if not ended.charge_nano:
        return None
    covered_nano = min(ended.charge_nano, ended.cost_nano)
    return Charged(
        request_id,
        chart.CLEARING_BURST,
        between(_paid(legs, chart.CLEARING_BURST), ended.before_nano, ended.charge_nano),
        _provider(legs, ended.provider),
        covered_nano,
        ended.charge_nano - covered_nano,
        ended.cost_nano - covered_nano,
    )


def _has_moved(leg: Leg) -> bool:
    return leg.phase in _MOVES and leg.amount_nano > 0


def _paid(legs: Sequence[Leg], clearing: str) -> tuple[Share, ...]:
    return tuple(Share(leg.debit, leg.amount_nano) for leg in legs if leg.credit == clearing and _has_moved(leg))


def _provider(legs: Sequence[Leg], name: str) -> str:
    """Return the provider's account: the only one that the event owes, or the one that the usage row names."""
    owed = {leg.credit for leg in legs if chart.is_provider(leg.credit)}
    named = chart.provider_accrued(chart.provider_id(name))
    if len(owed) == 1:
        return owed.pop()
    return named if named in owed else ""


def _beyond_of(legs: Sequence[Leg]) -> str:
    return next((leg.credit for leg in legs if chart.is_provider(leg.credit)), "")

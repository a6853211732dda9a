"""Refund a request's charge, whole or in part: reverse the recorded legs, the last ones first."""

from collections.abc import Sequence
from dataclasses import dataclass

from accounting import chart
from accounting.errors import PostingInvalid
from accounting.ledger.postings import Leg, Posting
from accounting.rules.charged import Charged
from accounting.rules.moves import moved
from accounting.rules.parts import Share


@dataclass(frozen=True, slots=True)
class RefundParties:
    """The current state of the parties to a refund, in nano-USD.

    `seller_has` is what may be taken back from the seller, in this order: maturing, payable, reserve. `owed_nano`
    is what the caller still owes us. `ended_grants` are credit grants that have expired.
    """

    seller_has: tuple[Share, ...] = ()
    owed_nano: int = 0
    ended_grants: frozenset[str] = frozenset()


def refund(
    charge: Charged, amount_nano: int, reason: str, standing: RefundParties, *, provider_credits: bool = False
) -> Posting:
    """Refund `amount_nano` of a charge: `income | seller -> clearing -> payers`, once per request.

    Every recipient of the charge gives back in proportion, our part rounded down. A seller without enough earnings
    owes the rest, `asset:seller_recv`. A provider bills us all the same, so its part is our expense,
    `expense:goodwill`. With `provider_credits` it will not bill: then `provider:accrued`. The last payer is
    refunded first. A debt that was paid meanwhile comes back as credits. The part of a credit grant that has
    ended since goes to its user's own credits, because in the grant it would expire at once.

    Raises:
        PostingInvalid: the amount is zero or exceeds the charge; or a provider is to credit it and the ledger does
            not know which one.
        AccountUnknown: the ledger names an account that the chart does not have.
    """
    if not 0 < amount_nano <= charge.charge_nano:
        raise PostingInvalid(f"at most {charge.charge_nano} nano of {charge.request_id!r} can be refunded")
    income_nano = amount_nano * charge.income_nano // charge.charge_nano
    legs = (
        *moved(_income(charge), charge.clearing, income_nano),
        *_from_partner(charge, amount_nano - income_nano, standing, provider_credits=provider_credits),
        *_beyond(charge, amount_nano, provider_credits=provider_credits),
        *_to_payers(charge, amount_nano, standing),
    )
    meta = {"reason": reason}
    return Posting(f"refund:{charge.request_id}", "usage_refund", charge.request_id, legs, meta)


def _income(charge: Charged) -> str:
    is_market = charge.clearing == chart.CLEARING_MARKET
    return chart.INCOME_MARKET_FEE if is_market else chart.INCOME_BURST_MARGIN


def _from_partner(
    charge: Charged, amount_nano: int, standing: RefundParties, *, provider_credits: bool
) -> tuple[Leg, ...]:
    if charge.clearing == chart.CLEARING_MARKET:
        return _from_seller(charge, amount_nano, standing.seller_has)
    if not provider_credits:
        return moved(chart.EXPENSE_GOODWILL, charge.clearing, amount_nano)
    if not charge.partner and amount_nano:
        raise PostingInvalid(f"the ledger does not know which provider billed {charge.request_id!r}")
    return moved(charge.partner, charge.clearing, amount_nano)


def _from_seller(charge: Charged, amount_nano: int, seller_has: Sequence[Share]) -> tuple[Leg, ...]:
    left_nano, legs = amount_nano, list[Leg]()
    for share in seller_has:
        taken_nano = max(0, min(left_nano, share.amount_nano))
        legs += moved(share.account, charge.clearing, taken_nano)
        left_nano -= taken_nano
    legs += moved(chart.seller_receivable(chart.seller_of(charge.partner)), charge.clearing, left_nano)
    return tuple(legs)


def _beyond(charge: Charged, amount_nano: int, *, provider_credits: bool) -> tuple[Leg, ...]:
    """Return what a provider had got on top of the charge, in the refund's proportion, rounded down."""
    if not (provider_credits and charge.beyond_nano):
        return ()
    beyond_nano = charge.beyond_nano * amount_nano // charge.charge_nano
    return moved(charge.partner, chart.EXPENSE_BURST_VARIANCE, beyond_nano)


def _to_payers(charge: Charged, amount_nano: int, standing: RefundParties) -> tuple[Leg, ...]:
    left_nano, legs = amount_nano, list[Leg]()
    for share in reversed(charge.paid):
        given_nano = min(left_nano, share.amount_nano)
        left_nano -= given_nano
        if debtor := chart.debtor_of(share.account):
            forgiven_nano = max(0, min(given_nano, standing.owed_nano))
            legs += moved(charge.clearing, share.account, forgiven_nano)
            legs += moved(charge.clearing, chart.user_paid(debtor), given_nano - forgiven_nano)
        elif share.account in standing.ended_grants:
            legs += moved(charge.clearing, chart.own_beside(share.account), given_nano)
        else:
            legs += moved(charge.clearing, share.account, given_nano)
    if left_nano:
        raise PostingInvalid(f"the ledger does not name the payer of {left_nano} nano of {charge.request_id!r}")
    return tuple(legs)

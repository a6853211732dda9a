"""Reserve money from several accounts at once, in the order in which they pay."""

from collections.abc import Sequence
from dataclasses import dataclass

from accounting.errors import InsufficientCredit
from accounting.ledger.postings import Leg, Phase
from accounting.money import checked_nano
from accounting.rules.moves import moved


@dataclass(frozen=True, slots=True)
class HeldPart:
    """The amount that one pending transfer has reserved. `pending_seq` is that transfer's number."""

    account: str
    amount_nano: int
    pending_seq: int


@dataclass(frozen=True, slots=True)
class Share:
    """An amount of one account: available to take, or to be taken."""

    account: str
    amount_nano: int


def split(amount_nano: int, funding: Sequence[Share]) -> tuple[Share, ...]:
    """Split an amount over accounts in their order, each as far as its credits go.

    Raises:
        InsufficientCredit: together they have less. The error names the last account, whose owner has to top up.
    """
    left_nano, shares = amount_nano, []
    for each in funding:
        if taken_nano := min(left_nano, each.amount_nano):
            shares.append(Share(each.account, taken_nano))
            left_nano -= taken_nano
    if left_nano:
        raise InsufficientCredit(funding[-1].account, amount_nano, amount_nano - left_nano)
    return tuple(shares)


def between(shares: Sequence[Share], before_nano: int, amount_nano: int) -> tuple[Share, ...]:
    """Return the shares of the `amount_nano` after the first `before_nano`, all shares laid end to end."""
    found, end_nano = [], before_nano + amount_nano
    start_nano = 0
    for share in shares:
        stop_nano = start_nano + share.amount_nano
        inside_nano = min(stop_nano, end_nano) - max(start_nano, before_nano)
        if inside_nano > 0:
            found.append(Share(share.account, inside_nano))
        start_nano = stop_nano
    return tuple(found)


def reserve_funds(shares: Sequence[Share], clearing: str, expires_ns: int) -> tuple[Leg, ...]:
    """Reserve every share: pending `account -> clearing`."""
    return tuple(
        Leg(share.account, clearing, share.amount_nano, "pending", expires_ns=expires_ns) for share in shares
    )


def pay_unheld(charge_nano: int, covered: Sequence[Share], receivable: str, clearing: str) -> tuple[Leg, ...]:
    """Pay a charge without a hold: from `covered` in their order, and the rest as a debt."""
    left_nano, legs = charge_nano, list[Leg]()
    for share in covered:
        taken_nano = min(left_nano, checked_nano(share.amount_nano))
        legs += moved(share.account, clearing, taken_nano)
        left_nano -= taken_nano
    return (*legs, *moved(receivable, clearing, left_nano))


def take(parts: Sequence[HeldPart], clearing: str, charge_nano: int) -> tuple[Leg, ...]:
    """Resolve every part: post the charge in their order, and release what it leaves.

    The charge must be within the sum of the parts; no account would pay the rest.
    """
    assert charge_nano <= sum(part.amount_nano for part in parts), "a charge is within its hold"
    legs = []
    for part in parts:
        taken_nano = min(charge_nano, part.amount_nano)
        charge_nano -= taken_nano
        phase: Phase = "post" if taken_nano else "void"
        legs.append(Leg(part.account, clearing, taken_nano, phase, part.pending_seq))
    return tuple(legs)

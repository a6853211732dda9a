"""Which accounts pay for a caller, in their order, and how much of each is at hand for a lease's next event."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from accounting.rules.parts import Part, Share


@dataclass(frozen=True, slots=True)
class Source:
    """An account that pays. From `ends_ns` on nothing more is promised of it: a promo lot has ended then."""

    account: str
    ends_ns: int | None = None


Purse: TypeAlias = tuple[Source, ...]
"""In the order in which they pay: the user's promo lots, those that end first before the others, then the pool's
credits, then the user's own, then the expense of an operator's own use."""


def left_of(parts: Sequence[Part], charge_nano: int) -> dict[str, int]:
    """Return what each part still has when a charge was taken from them in their order."""
    left: dict[str, int] = {}
    for part in parts:
        taken_nano = min(charge_nano, part.amount_nano)
        charge_nano -= taken_nano
        left[part.account] = left.get(part.account, 0) + part.amount_nano - taken_nano
    return left


def at_hand(
    purse: Purse, left: Mapping[str, int], available: Mapping[str, int], *, kept_nano: int, now_ns: int
) -> list[Share]:
    """Return how much of each account a lease's next event may put aside, in the order in which they pay.

    `left` is what the lease has of each now, `available` what else there is. Of an account that has ended, or that
    is in the purse no more, only what requests need that run already: `kept_nano` is what they need of all
    together. So much is there, as long as the lease has it.
    """
    open_accounts = {source.account for source in purse if source.ends_ns is None or now_ns < source.ends_ns}
    ended = [account for account in left if account not in open_accounts]
    shares = []
    for account in ended:
        shares.append(Share(account, min(left[account], kept_nano)))
        kept_nano -= shares[-1].amount_nano
    shares += [
        Share(source.account, left.get(source.account, 0) + max(0, available.get(source.account, 0)))
        for source in purse
        if source.account in open_accounts
    ]
    return shares


def first_end_ns(purse: Purse, parts: Sequence[Part], now_ns: int) -> int | None:
    """Return when the first of the parts ends that has not ended yet; None where none of them does."""
    accounts = {part.account for part in parts}
    ends = [source.ends_ns for source in purse if source.ends_ns is not None and source.account in accounts]
    return min((ends_ns for ends_ns in ends if ends_ns > now_ns), default=None)

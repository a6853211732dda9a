"""Decide which accounts pay for a caller, in their order, and how much of each a lease's next event may use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from accounting.rules.parts import HeldPart, Share


@dataclass(frozen=True, slots=True)
class FundingSource:
    """An account that pays. From `ends_ns` on nothing may be reserved from it: its credit grant has ended."""

    account: str
    ends_ns: int | None = None


Funding: TypeAlias = tuple[FundingSource, ...]
"""The funding sources in their charge order: the user's credit grants, those that end first before the others; the
organization's credits; the user's own; the expense of an operator's own use."""


def left_of(parts: Sequence[HeldPart], charge_nano: int) -> dict[str, int]:
    """Return what each part still has after a charge was taken from them in their order."""
    left: dict[str, int] = {}
    for part in parts:
        taken_nano = min(charge_nano, part.amount_nano)
        charge_nano -= taken_nano
        left[part.account] = left.get(part.account, 0) + part.amount_nano - taken_nano
    return left


def at_hand(
    funding: Funding, left: Mapping[str, int], available: Mapping[str, int], *, kept_nano: int, now_ns: int
) -> list[Share]:
    """Return how much of each account a lease's next event may reserve, in the charge order.

    `left` is what the lease has of each account now, `available` what else each account has. An account that has
    ended or left the funding sources only covers running requests: `kept_nano` is what these need in all. The
    lease itself holds that much.
    """
    open_accounts = {source.account for source in funding if source.ends_ns is None or now_ns < source.ends_ns}
    ended = [account for account in left if account not in open_accounts]
    shares = []
    for account in ended:
        shares.append(Share(account, min(left[account], kept_nano)))
        kept_nano -= shares[-1].amount_nano
    shares += [
        Share(source.account, left.get(source.account, 0) + max(0, available.get(source.account, 0)))
        for source in funding
        if source.account in open_accounts
    ]
    return shares


def first_end_ns(funding: Funding, parts: Sequence[HeldPart], now_ns: int) -> int | None:
    """Return when the first of the parts that have not ended yet ends; None if none of them ends."""
    accounts = {part.account for part in parts}
    ends = [source.ends_ns for source in funding if source.ends_ns is not None and source.account in accounts]
    return min((ends_ns for ends_ns in ends if ends_ns > now_ns), default=None)

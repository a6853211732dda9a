"""Somebody's account at a house, wherever the house is: what can be asked of it, and what it answers."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Protocol

from msgspec import Meta, Struct

from accounting.errors import AmountInvalid
from accounting.money import parse_usd

PAYOUTS_SHOWN = 20

Count = Annotated[int, Meta(ge=0)]
Bps = Annotated[int, Meta(ge=0, le=10_000)]


class _Earned(Struct, frozen=True):
    maturing: str
    payable: str
    reserve: str
    owed: str

    def __post_init__(self) -> None:
        for amount in (self.maturing, self.payable, self.reserve, self.owed):
            _nano(amount)


class Lacking(Struct, frozen=True):
    """What a seller has to show yet to be new no more."""

    jobs: Count
    buyers: Count
    days: Count


class Mine(Struct, frozen=True):
    """As `/market/v1/sellers/me` has it."""

    account: str
    identities: tuple[str, ...]
    barred: str | None
    earned: _Earned
    probation: bool
    lacking: Lacking


class Probation(Struct, frozen=True):
    days: Count
    jobs: Count
    buyers: Count
    reserve_bps: Bps
    maturity_days: Count


class Conditions(Struct, frozen=True):
    """A house's, as `/market/v1/house` has them. `fee_bps` are hundredths of a percent of what is sold."""

    identity: str
    fee_bps: Bps
    probation: Probation
    maturity_days: Count


class PayoutLine(Struct, frozen=True):
    """A payout, as `/accounting/v1/payouts` has it; the amount is a decimal string in USD."""

    id: str
    amount: str
    status: str
    attempt: int
    reason: str | None
    created: str

    def __post_init__(self) -> None:
        _nano(self.amount)
        if datetime.fromisoformat(self.created).tzinfo is None:
            raise ValueError("a time without its zone")

    @property
    def amount_nano(self) -> int:
        return _nano(self.amount)

    @property
    def created_ns(self) -> int:
        return int(datetime.fromisoformat(self.created).timestamp()) * 10**9


@dataclass(frozen=True, slots=True)
class Standing:
    """What an account has earned, in nano-USD, and what it lacks to be new no more."""

    account: str
    identities: tuple[str, ...]
    barred_why: str | None
    maturing_nano: int
    payable_nano: int
    reserve_nano: int
    owed_nano: int
    is_new: bool
    lacking: Lacking


@dataclass(frozen=True, slots=True)
class Connect:
    """Where the seller is paid: nothing yet, not finished at Stripe, or ready."""

    has_account: bool
    is_ready: bool = False
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a payout may be, in nano-USD; `paid_today_nano` of the day's most is used. None where nobody tells."""

    least_nano: int | None = None
    day_nano: int | None = None
    paid_today_nano: int = 0


class Account(Protocol):
    """Somebody's at a house. Methods raise Overloaded where the house does not answer, else what routes raise.

    Those about payments raise FeatureUnsupported at a house that takes none.
    """

    @property
    def house(self) -> str:
        """What people call the house."""

    @property
    def is_here(self) -> bool: ...

    async def conditions(self) -> Conditions: ...

    async def standing(self) -> Standing: ...

    async def connect(self) -> Connect: ...

    async def onboard(self, once: str) -> str:
        """The address of a page of Stripe's, for minutes; `once` names this wish."""

    async def payouts(self) -> tuple[PayoutLine, ...]: ...

    async def pay_out(self, amount_nano: int, once: str) -> PayoutLine:
        """Asked again with the same `once` it is the same payout."""

    async def bounds(self) -> Bounds: ...


def _nano(amount: str) -> int:
    """Raises ValueError, which is how a house elsewhere is told to make no sense."""
    try:
        return parse_usd(amount, allow_negative=True)
    except AmountInvalid as error:
        raise ValueError(str(error)) from None


def standing_of(mine: Mine) -> Standing:
    earned = mine.earned
    return Standing(
        mine.account,
        mine.identities,
        mine.barred,
        _nano(earned.maturing),
        _nano(earned.payable),
        _nano(earned.reserve),
        _nano(earned.owed),
        mine.probation,
        mine.lacking,
    )

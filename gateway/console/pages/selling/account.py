"""A seller's account at a marketplace, local or remote: its requests and their answers."""

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
    """What a seller still needs to leave the new-seller period."""

    jobs: Count
    buyers: Count
    days: Count


class Mine(Struct, frozen=True):
    """The answer of `/market/v1/sellers/me`."""

    account: str
    identities: tuple[str, ...]
    suspended: str | None
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
    """A marketplace's terms from `/market/v1/marketplace`. `fee_bps` is hundredths of a percent of the sales."""

    identity: str
    fee_bps: Bps
    probation: Probation
    maturity_days: Count


class PayoutLine(Struct, frozen=True):
    """A payout from `/accounting/v1/payouts`; the amount is a decimal string in USD."""

    id: str
    amount: str
    status: str
    attempt: int
    reason: str | None
    created: str

    def __post_init__(self) -> None:
        """Raises ValueError if the amount or the time is malformed."""
        _nano(self.amount)
        if datetime.fromisoformat(self.created).tzinfo is None:
            raise ValueError("the time has no time zone")

    @property
    def amount_nano(self) -> int:
        return _nano(self.amount)

    @property
    def created_ns(self) -> int:
        return int(datetime.fromisoformat(self.created).timestamp()) * 10**9


@dataclass(frozen=True, slots=True)
class Standing:
    """An account's earnings in nano-USD, and what it needs to leave the new-seller period."""

    account: str
    identities: tuple[str, ...]
    suspended_reason: str | None
    maturing_nano: int
    payable_nano: int
    reserve_nano: int
    owed_nano: int
    is_new: bool
    lacking: Lacking


@dataclass(frozen=True, slots=True)
class Connect:
    """State of the payout account: missing, unfinished at Stripe, or ready."""

    has_account: bool
    is_ready: bool = False
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Bounds:
    """Payout limits in nano-USD; `paid_today_nano` counts against the daily limit. None if unknown."""

    least_nano: int | None = None
    day_nano: int | None = None
    paid_today_nano: int = 0


class Account(Protocol):
    """An account at a marketplace. Methods raise Overloaded if it does not answer, else what routes raise.

    Methods about payments raise FeatureUnsupported at a marketplace without payments.
    """

    @property
    def marketplace(self) -> str:
        """The marketplace's display name."""

    @property
    def is_here(self) -> bool: ...

    async def conditions(self) -> Conditions: ...

    async def standing(self) -> Standing: ...

    async def connect(self) -> Connect: ...

    async def onboard(self, once: str) -> str:
        """Return the address of a Stripe page, valid for minutes; `once` is the idempotency key."""

    async def payouts(self) -> tuple[PayoutLine, ...]: ...

    async def pay_out(self, amount_nano: int, once: str) -> PayoutLine:
        """Open a payout; repeated with the same `once` it is the same payout."""

    async def bounds(self) -> Bounds: ...


def _nano(amount: str) -> int:
    """Convert to nano-USD. Raises ValueError, which reports a marketplace's invalid answer."""
    try:
        return parse_usd(amount, allow_negative=True)
    except AmountInvalid as error:
        raise ValueError(str(error)) from None


def standing_of(mine: Mine) -> Standing:
    earned = mine.earned
    return Standing(
        mine.account,
        mine.identities,
        mine.suspended,
        _nano(earned.maturing),
        _nano(earned.payable),
        _nano(earned.reserve),
        _nano(earned.owed),
        mine.probation,
        mine.lacking,
    )

"""What the house offers: which amounts, at which fee, paid out how. Pure."""

from dataclasses import dataclass

from accounting.money import NANO_PER_USD, Nano, checked_nano, format_usd
from accounting.payments.errors import PaymentInvalid

AUTO_DAY_MAX = 4
"""How often a day credits are bought for a user unasked, where the user says nothing else."""
AUTO_MONTH_NANO = Nano(500 * NANO_PER_USD)
"""What such purchases may come to in a month, fees included, where the user says nothing else."""
NANO_PER_CENT = NANO_PER_USD // 100
_BPS = 10_000


@dataclass(frozen=True, slots=True)
class Terms:
    """The house's conditions; amounts in nano-USD, `fee_bps` in hundredths of a percent of the credits."""

    topup_amounts_nano: tuple[int, ...] = tuple(usd * NANO_PER_USD for usd in (5, 10, 25, 50, 100))
    fee_bps: int = 550
    fee_min_nano: int = 80 * NANO_PER_CENT
    payout_min_nano: int = 10 * NANO_PER_USD
    payout_day_max_nano: int = 1_000 * NANO_PER_USD
    account_rest_s: int = 72 * 3600
    """How long after a change of account nothing is paid out to it."""
    pool_rest_s: int = 7 * 24 * 3600
    """How long credits stay with whoever bought them before they may go into a pool."""
    success_url: str = "http://127.0.0.1/console/paid"
    cancel_url: str = "http://127.0.0.1/console/not-paid"
    onboarding_url: str = "http://127.0.0.1/console/seller"


@dataclass(frozen=True, slots=True)
class Quote:
    """What a top-up costs, told before anything is paid: whole cents, `total = credit + fee`."""

    credit_nano: int
    fee_nano: int

    @property
    def total_nano(self) -> int:
        return self.credit_nano + self.fee_nano


def quote(terms: Terms, credit_nano: int) -> Quote:
    """Return the price of a top-up; the fee is rounded up to a cent.

    Raises:
        PaymentInvalid: an amount that is not on offer.
    """
    if credit_nano not in terms.topup_amounts_nano:
        offered = ", ".join(format_usd(amount_nano) for amount_nano in terms.topup_amounts_nano)
        raise PaymentInvalid("amount", f"top-ups come in these amounts of USD: {offered}")
    share_nano = -(-credit_nano * terms.fee_bps // _BPS)
    return Quote(credit_nano, from_cents(-(-max(share_nano, terms.fee_min_nano) // NANO_PER_CENT)))


def to_cents(amount_nano: int) -> int:
    """Return whole cents. Raises PaymentInvalid for an amount that has a fraction of one."""
    cents, rest = divmod(checked_nano(amount_nano), NANO_PER_CENT)
    if rest:
        raise PaymentInvalid("amount", "money moves in whole cents: leave at most two digits after the point")
    return cents


def from_cents(cents: int) -> int:
    return cents * NANO_PER_CENT

"""Define what the marketplace offers: amounts, fees and payout rules. Pure."""

from dataclasses import dataclass

from accounting.money import NANO_PER_USD, Nano, checked_nano, format_usd
from accounting.payments.errors import PaymentInvalid

AUTO_DAY_MAX = 4
"""The default number of automatic purchases a day for a user."""
AUTO_MONTH_NANO = Nano(500 * NANO_PER_USD)
"""The default limit of such purchases a month, fees included."""
NANO_PER_CENT = NANO_PER_USD // 100
_BPS = 10_000


@dataclass(frozen=True, slots=True)
class PaymentTerms:
    """The gateway's conditions. Amounts are in nano-USD, `fee_bps` in hundredths of a percent of the credits."""

    topup_amounts_nano: tuple[int, ...] = tuple(usd * NANO_PER_USD for usd in (5, 10, 25, 50, 100))
    fee_bps: int = 550
    fee_min_nano: int = 80 * NANO_PER_CENT
    payout_min_nano: int = 10 * NANO_PER_USD
    payout_day_max_nano: int = 1_000 * NANO_PER_USD
    account_rest_s: int = 72 * 3600
    """Payouts wait this long after a change of their account, in seconds."""
    pool_rest_s: int = 7 * 24 * 3600
    """Credits stay with their buyer this long before they may go into a pool, in seconds."""
    success_url: str = "http://127.0.0.1/console/paid"
    cancel_url: str = "http://127.0.0.1/console/not-paid"
    onboarding_url: str = "http://127.0.0.1/console/seller"


@dataclass(frozen=True, slots=True)
class Quote:
    """The price of a top-up before it is paid: whole cents, `total = credit + fee`."""

    credit_nano: int
    fee_nano: int

    @property
    def total_nano(self) -> int:
        return self.credit_nano + self.fee_nano


def quote(terms: PaymentTerms, credit_nano: int) -> Quote:
    """Return the price of a top-up. The fee is rounded up to a cent.

    Raises:
        PaymentInvalid: the amount is not on offer.
    """
    if credit_nano not in terms.topup_amounts_nano:
        offered = ", ".join(format_usd(amount_nano) for amount_nano in terms.topup_amounts_nano)
        raise PaymentInvalid("amount", f"top-ups are offered in these amounts of USD: {offered}")
    share_nano = -(-credit_nano * terms.fee_bps // _BPS)
    return Quote(credit_nano, from_cents(-(-max(share_nano, terms.fee_min_nano) // NANO_PER_CENT)))


def to_cents(amount_nano: int) -> int:
    """Return whole cents. Raises PaymentInvalid for an amount with a fraction of a cent."""
    cents, rest = divmod(checked_nano(amount_nano), NANO_PER_CENT)
    if rest:
        raise PaymentInvalid("amount", "amounts must be whole cents: use at most two digits after the point")
    return cents


def from_cents(cents: int) -> int:
    return cents * NANO_PER_CENT

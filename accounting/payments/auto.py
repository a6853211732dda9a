"""When credits are bought unasked, with a saved method: below a threshold, so often a day, for so much a month,
after pauses. Pure."""

from datetime import UTC, datetime

from accounting.payments.tables import Payer

DAY_NS = 24 * 3600 * 10**9
FAILURES_MAX = 3
"""After so many declined purchases in a row nothing is bought until the threshold or the method is set anew."""
_FIRST_PAUSE_NS = 4 * 3600 * 10**9

HAS_FAILED = ("requires_payment_method", "requires_action", "canceled")
"""Statuses of a payment that nobody is there to bring any further."""


def is_due(payer: Payer, available_nano: int, bought_today: int, now_ns: int) -> bool:
    """True where the user wants credits bought now, and may; whether frozen is not looked at."""
    return (
        payer.method_id is not None
        and payer.auto_below_nano is not None
        and available_nano < payer.auto_below_nano
        and bought_today < payer.auto_day_max
        and payer.auto_failures < FAILURES_MAX
        and payer.auto_paused_until_ns <= now_ns
    )


def fits(payer: Payer, spent_nano: int, total_nano: int) -> bool:
    """Whether a purchase for `total_nano` is within the month, beside what those before it came to."""
    return spent_nano + total_nano <= payer.auto_month_nano


def month_start_ns(now_ns: int) -> int:
    """When the UTC month began that holds this time."""
    today = datetime.fromtimestamp(now_ns // 10**9, UTC)
    return int(datetime(today.year, today.month, 1, tzinfo=UTC).timestamp()) * 10**9


def note_failure(payer: Payer, now_ns: int) -> None:
    """Pause after a declined purchase, twice as long after each: a card that says no is not asked all day."""
    payer.auto_paused_until_ns = now_ns + _FIRST_PAUSE_NS * 2**payer.auto_failures
    payer.auto_failures += 1


def note_success(payer: Payer) -> None:
    payer.auto_failures = payer.auto_paused_until_ns = 0

"""Decide when to buy credits automatically with a saved method: below a threshold, within limits.

The limits are purchases a day and money a month. Failed purchases are followed by pauses. Pure.
"""

from datetime import UTC, datetime

from accounting.payments.tables import Payer

DAY_NS = 24 * 3600 * 10**9
FAILURES_MAX = 3
"""After this many declined purchases in a row, buying stops until the threshold or the method is set again."""
_FIRST_PAUSE_NS = 4 * 3600 * 10**9

HAS_FAILED = ("requires_payment_method", "requires_action", "canceled")
"""Final statuses of a payment without its payer present."""


def is_due(payer: Payer, available_nano: int, bought_today: int, now_ns: int) -> bool:
    """Return whether the user's settings call for a purchase now. The caller checks whether the user is frozen."""
    return (
        payer.method_id is not None
        and payer.auto_below_nano is not None
        and available_nano < payer.auto_below_nano
        and bought_today < payer.auto_day_max
        and payer.auto_failures < FAILURES_MAX
        and payer.auto_paused_until_ns <= now_ns
    )


def fits(payer: Payer, spent_nano: int, total_nano: int) -> bool:
    """Return whether a purchase of `total_nano` fits the month's limit, with the earlier purchases."""
    return spent_nano + total_nano <= payer.auto_month_nano


def month_start_ns(now_ns: int) -> int:
    """Return the start of the UTC month that contains this time."""
    today = datetime.fromtimestamp(now_ns // 10**9, UTC)
    return int(datetime(today.year, today.month, 1, tzinfo=UTC).timestamp()) * 10**9


def note_failure(payer: Payer, now_ns: int) -> None:
    """Pause after a declined purchase, twice as long after each, so that a declined card is not tried all day."""
    payer.auto_paused_until_ns = now_ns + _FIRST_PAUSE_NS * 2**payer.auto_failures
    payer.auto_failures += 1


def note_success(payer: Payer) -> None:
    payer.auto_failures = payer.auto_paused_until_ns = 0

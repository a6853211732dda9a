"""What cloud providers bill us: paid, and compared with what we had reckoned request by request."""

from accounting import chart
from accounting.ledger.postings import Posting
from accounting.money import checked_nano
from accounting.rules.moves import moved

_ALARMING_PARTS = 100


def invoice_paid(provider: str, invoice_id: str, accrued_nano: int, billed_nano: int) -> Posting:
    """Pay a provider's bill: `provider:accrued -> asset:bank`; what we had reckoned otherwise is our variance.

    `accrued_nano` is what the books say is owed for the time that the bill is for. Where the bill is higher, first
    `expense:burst_variance -> provider:accrued`, where it is lower the other way round: that time is settled then,
    and what was accrued after it stays owed.
    """
    owed = chart.provider_accrued(provider)
    beyond_nano = checked_nano(billed_nano) - checked_nano(accrued_nano)
    legs = (
        *moved(chart.EXPENSE_BURST_VARIANCE, owed, max(0, beyond_nano)),
        *moved(owed, chart.EXPENSE_BURST_VARIANCE, max(0, -beyond_nano)),
        *moved(owed, chart.ASSET_BANK, billed_nano),
    )
    return Posting(f"inv:{provider}:{invoice_id}", "invoice", invoice_id, legs, {"accrued": str(accrued_nano)})


def is_alarming(accrued_nano: int, billed_nano: int) -> bool:
    """Whether a bill and our own reckoning differ by more than one per cent: prices or counts are wrong then."""
    return abs(billed_nano - accrued_nano) * _ALARMING_PARTS > accrued_nano

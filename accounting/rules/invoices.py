"""Pay the invoices of cloud providers, and compare them with the costs that we booked per request."""

from accounting import chart
from accounting.ledger.postings import Posting
from accounting.money import checked_nano
from accounting.rules.moves import moved

_ALARMING_PARTS = 100


def invoice_paid(provider: str, invoice_id: str, accrued_nano: int, billed_nano: int) -> Posting:
    """Pay a provider's bill: `provider:accrued -> asset:bank`. A difference from our own sum is our variance.

    `accrued_nano` is what the ledger owes for the period of the bill. If the bill is higher, first book
    `expense:burst_variance -> provider:accrued`; if it is lower, the reverse. This settles the period, and what
    was accrued after it stays owed.
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
    """Return whether a bill differs from our own sum by over 1 %: then prices or counts are wrong."""
    return abs(billed_nano - accrued_nano) * _ALARMING_PARTS > accrued_nano

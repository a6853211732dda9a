"""What sellers are owed for a request beyond what it was booked with: our variance, since nobody is charged it."""

from accounting import chart
from accounting.errors import PostingInvalid
from accounting.ledger.postings import Posting
from accounting.money import checked_nano
from accounting.rules.moves import moved


def owed_beyond(request_id: str, provider: str, accrued_nano: int, owed_nano: int) -> Posting:
    """Book what a request is owed for beyond its usage row, `expense:burst_variance -> provider:accrued`, once.

    `accrued_nano` is the row's cost, 0 where a request has none since its gateway died.

    Raises:
        AmountInvalid: amounts that no event may move.
        PostingInvalid: no more is owed than was booked.
    """
    beyond_nano = checked_nano(owed_nano) - checked_nano(accrued_nano)
    if beyond_nano <= 0:
        raise PostingInvalid(f"{request_id!r} is owed {owed_nano} for, and {accrued_nano} is booked")
    legs = moved(chart.EXPENSE_BURST_VARIANCE, chart.provider_accrued(provider), beyond_nano)
    return Posting(f"owed:{request_id}", "variance", request_id, legs, {"accrued": str(accrued_nano)})

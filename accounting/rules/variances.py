"""Book what sellers are owed for a request beyond its usage row. It is our variance: no user is charged for it."""

from accounting import chart
from accounting.errors import PostingInvalid
from accounting.ledger.postings import Posting
from accounting.money import checked_nano
from accounting.rules.moves import moved


def owed_beyond(request_id: str, provider: str, accrued_nano: int, owed_nano: int) -> Posting:
    """Book a debt for a request beyond its usage row, `expense:burst_variance -> provider:accrued`, once.

    `accrued_nano` is the row's cost, or 0 if the gateway died and the request has no row.

    Raises:
        AmountInvalid: no event may move these amounts.
        PostingInvalid: no more is owed than was booked.
    """
    beyond_nano = checked_nano(owed_nano) - checked_nano(accrued_nano)
    if beyond_nano <= 0:
        raise PostingInvalid(f"{owed_nano} nano are owed for {request_id!r}, and {accrued_nano} nano are booked")
    legs = moved(chart.EXPENSE_BURST_VARIANCE, chart.provider_accrued(provider), beyond_nano)
    return Posting(f"owed:{request_id}", "variance", request_id, legs, {"accrued": str(accrued_nano)})

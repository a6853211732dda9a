"""Failures of one seller; the gateway gets them as a `Refusal` (gateway.lanes.cloud.worker.errors).

SellerFailed       the seller did not answer, or not completely; another seller may
├── SellerBusy     the seller has no free slot now
├── SellerRefuses  the seller rejects the job as it is; `code` gives the reason
└── Garbled        the seller sent an invalid answer; we stop reading
"""

from market.errors import MarketError


class SellerFailed(MarketError):
    """The seller did not answer, or not completely. `code` is one word; the message is written by us."""

    code = "failed"

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code or self.code


class SellerBusy(SellerFailed):
    """The seller has no free slot now."""

    code = "full"

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SellerRefuses(SellerFailed):
    """The seller rejects the job as it is."""

    code = "refused"


class Garbled(SellerFailed):
    """The seller sent an invalid answer; we stop reading."""

    code = "garbled"

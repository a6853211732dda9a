"""What goes wrong at one seller; what the gateway is told of it is a `Refusal` (gateway.cloud_worker.errors).

SellerFailed       this seller does not answer, or not to the end: another one may
├── SellerBusy     it has no room just now
├── SellerRefuses  it does not take the job as it is; `code` says why by name
└── Garbled        what it sent is no answer: nothing more of it is read
"""

from market.errors import MarketError


class SellerFailed(MarketError):
    """This seller does not answer, or not to the end. `code` is one word; the message is ours alone."""

    code = "failed"

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code or self.code


class SellerBusy(SellerFailed):
    """It has no room just now."""

    code = "full"

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SellerRefuses(SellerFailed):
    """It does not take the job as it is."""

    code = "refused"


class Garbled(SellerFailed):
    """What it sent is no answer: nothing more of it is read."""

    code = "garbled"

"""Errors of requests to untrusted addresses."""

from market.errors import MarketError


class Unreachable(MarketError):
    """No usable answer came. If `is_unsent`, the other side has certainly seen nothing of the request.

    The reason is for logs: it repeats nothing that the other side sent.
    """

    def __init__(self, reason: str, *, is_unsent: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_unsent = is_unsent

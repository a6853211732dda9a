"""What can go wrong on the way to a stranger."""

from market.errors import MarketError


class Unreachable(MarketError):
    """No answer that could be used. `is_unsent`: the other side has certainly seen nothing of the request.

    The reason is for logs: it repeats nothing that the other side said.
    """

    def __init__(self, reason: str, *, is_unsent: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_unsent = is_unsent

"""Failures on order: which calls fail, how, and how often."""

import re
from dataclasses import dataclass
from typing import Literal

Fault = Literal["timeout_before", "timeout_after", "error_before", "error_after", "rate_limited", "slow"]
"""`timeout` cuts the connection without an answer; `before` and `after` say whether the effect happened. An
error is a 500, which Stripe keeps as the answer of its key. `slow` answers once the server's
`released` is set."""


@dataclass
class _Order:
    path: re.Pattern[str]
    fault: Fault
    count: int


class Faults:
    def __init__(self) -> None:
        self._orders: list[_Order] = []

    def order(self, fault: Fault, path: str = ".*", count: int = 1) -> None:
        """Let the next `count` POSTs whose path matches fail so."""
        self._orders.append(_Order(re.compile(path), fault, count))

    def clear(self) -> None:
        self._orders.clear()

    def next(self, path: str) -> Fault | None:
        for order in self._orders:
            if order.count and order.path.search(path):
                order.count -= 1
                return order.fault
        return None

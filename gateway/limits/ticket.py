"""One request's place within its caller's limits, from entry to leaving."""

from collections.abc import Callable
from typing import Protocol

from gateway.limits.counters import Counter
from gateway.limits.headers import Headers, headers_of
from gateway.limits.plans import NO_PLAN, Plan


class SpendDesk(Protocol):
    """Who has a request's money reserved."""

    async def take_spend(self, plan: Plan, amount_nano: int) -> None: ...


class Ticket:
    """What a request has reserved. One event loop owns it."""

    __slots__ = ("_clock", "_desk", "_entered_s", "_plan", "_spend_nano", "_tokens")

    def __init__(
        self, plan: Plan, tokens: int, entered_s: float, clock: Callable[[], float], desk: SpendDesk
    ) -> None:
        self._plan = plan
        self._tokens = tokens
        self._spend_nano = 0
        self._entered_s = entered_s
        self._clock = clock
        self._desk = desk

    async def reserve_spend(self, amount_nano: int) -> None:
        """The most that the request may cost, in addition to what is reserved already.

        Raises:
            BudgetExceeded: a limit on money has less left.
            BudgetUnavailable: nobody can say what is left.
        """
        if amount_nano and self._plan.spend:
            await self._desk.take_spend(self._plan, amount_nano)
            self._spend_nano += amount_nano

    def leave(self, tokens: int, spend_nano: int, *, is_served: bool | None = None) -> None:
        """The request has ended and came to this; what it did not use is given back. Never raises.

        A request that was not served does not count at all; without the caller's word, one that came to nothing
        was not served.
        """
        plan, self._plan = self._plan, NO_PLAN
        now_s = self._clock()
        for counter in plan.slots:
            counter.left += 1
            counter.held -= 1
        if plan.tokens:
            _settle(plan.tokens, self._tokens, tokens, now_s)
        if plan.spend and (spend_nano or self._spend_nano):
            _settle(plan.spend, self._spend_nano, spend_nano, now_s)
        if is_served is None:
            is_served = bool(tokens or spend_nano)
        if not is_served:
            for counter in plan.requests:
                counter.untake(1, self._entered_s, now_s)

    def headers(self) -> Headers:
        """What the limits on requests and tokens that are nearest have left, in OpenAI's names."""
        if not self._plan.requests and not self._plan.tokens:
            return []
        now_s = self._clock()
        return [*_headers(self._plan.requests, now_s), *_headers(self._plan.tokens, now_s)]


def _settle(counters: tuple[Counter, ...], reserved: int, used: int, now_s: float) -> None:
    for counter in counters:
        if now_s >= counter.ends_s:
            counter.roll(now_s)
        counter.held -= reserved
        counter.taken += used
        counter.left += reserved - used


def _headers(counters: tuple[Counter, ...], now_s: float) -> Headers:
    if not counters:
        return []
    nearest = min(counters, key=lambda have: have.visible)
    return headers_of(nearest, nearest.room_s(nearest.amount, now_s))

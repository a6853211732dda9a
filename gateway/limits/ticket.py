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
    """What a request has reserved. One event loop owns it.

    `answers_by` is the model whose limits it is within. Where that is not the one asked for, the limits that name
    it are a ticket of their own beside this one, which ends with it.
    """

    __slots__ = (
        "_beside",
        "_clock",
        "_desk",
        "_entered_s",
        "_plan",
        "_spend_nano",
        "answers_by",
        "model",
        "tokens",
    )

    def __init__(
        self,
        plan: Plan,
        tokens: int,
        entered_s: float,
        clock: Callable[[], float],
        desk: SpendDesk,
        model: str = "",
    ) -> None:
        self.model = self.answers_by = model
        self.tokens = tokens
        self._beside: Ticket | None = None
        self._plan = plan
        self._spend_nano = 0
        self._entered_s = entered_s
        self._clock = clock
        self._desk = desk
        for counter in plan.tokens + plan.spend:
            counter.tickets += 1

    async def reserve_spend(self, amount_nano: int) -> None:
        """The most that the request may cost, in addition to what is reserved already.

        Raises:
            BudgetExceeded: a limit on money has less left.
            BudgetUnavailable: nobody can say what is left.
        """
        if amount_nano and self._plan.spend:
            await self._desk.take_spend(self._plan, amount_nano)
            self._spend_nano += amount_nano

    async def cover(self, amount_nano: int) -> None:
        """Have so much reserved in all, also within the limits of the model that answers in another's place.

        Raises BudgetExceeded, BudgetUnavailable.
        """
        if amount_nano > self._spend_nano:
            await self.reserve_spend(amount_nano - self._spend_nano)
        if self._beside:
            await self._beside.cover(amount_nano)

    def put_beside(self, other: "Ticket | None") -> None:
        """Another model is to answer than the one asked for, or than the one before, which did not."""
        before, self._beside = self._beside, other
        self.answers_by = other.model if other else self.model
        if before:
            before.leave(0, 0, is_served=False)

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
        for counter in plan.tokens + plan.spend:
            counter.tickets -= 1
        if plan.tokens:
            _settle(plan.tokens, self.tokens, tokens, now_s)
        if plan.spend and (spend_nano or self._spend_nano):
            _settle(plan.spend, self._spend_nano, spend_nano, now_s)
        if is_served is None:
            is_served = bool(tokens or spend_nano)
        if not is_served:
            for counter in plan.requests:
                counter.untake(1, self._entered_s, now_s)
        if self._beside:
            self._beside.leave(tokens, spend_nano, is_served=is_served)

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

"""The limits of a request's key, user and organization together; the entry point of `gateway.limits`."""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import NoReturn, Protocol

from gateway.identity.caller import Caller
from gateway.limits.counters import Counter
from gateway.limits.plans import Plan, Plans, Shortage, shortages
from gateway.limits.refusals import Refused, in_words, refusal
from gateway.limits.ticket import Ticket
from gateway.quota import Measure, Quota
from runtime.errors import Overloaded
from runtime.hang_ups import HangUps

# Draws are short and bounded; this is for a crowd that keeps taking what one waiter drew, and for shared counters
# that are rebuilt, which takes as long as a lease.
_PATIENCE_S = 6.0
_SWEEP_EVERY_S = 600.0


class Source(Protocol):
    """Source of counters, which also refills empty ones."""

    clock: Callable[[], float]

    def counter(self, quota: Quota) -> Counter:
        """Return the one counter of this quota, with the quota's amount."""
        ...

    async def refill(self, short: list[Shortage]) -> Refused | None:
        """Try to refill these counters. Returns None if the caller should try again, else the refusal."""
        ...

    def sweep(self) -> bool:
        """Drop counters without content; returns whether there were any."""
        ...


class Limits:
    """Admits requests. One event loop owns it; it never waits while the slices of this process last."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._clock = source.clock
        self.plans = Plans(source.counter)
        self.hang_ups = HangUps()
        self.refusals: dict[Measure, int] = {"requests": 0, "tokens": 0, "concurrency": 0, "spend": 0}
        """Number of refused requests by the measure of the limit that was reached."""

    async def enter(self, caller: Caller, model: str, tokens: int) -> Ticket:
        """Reserve one request, one slot and `tokens` tokens for this caller; `Ticket.leave` must follow.

        Raises:
            RateLimited: a limit is reached.
            Overloaded: the counters did not tell in time whether one is.
        """
        return self.enter_at_once(caller, model, tokens) or await self._enter(
            self.plans.of(caller, model), tokens, model
        )

    def enter_at_once(self, caller: Caller, model: str, tokens: int) -> Ticket | None:
        """Enter if all counters have enough; None if `enter` may have to wait or to refuse."""
        plan, now_s = self.plans.of(caller, model), self._clock()
        return Ticket(plan, tokens, now_s, self._clock, self, model) if plan.take(tokens, now_s) else None

    async def enter_beside(self, ticket: Ticket, caller: Caller, names: Iterable[str]) -> None:
        """Reserve also in the limits on these names, of a model that answers under another name than requested.

        Raises:
            RateLimited: one of them is reached.
        """
        further = tuple(name for name in names if name != ticket.model)
        if further == ticket.further:
            return
        ticket.put_beside(None)
        if further:
            plan = self.plans.beside(caller, *further)
            ticket.put_beside(await self._enter(plan, ticket.tokens, further[0]), further)

    async def _enter(self, plan: Plan, tokens: int, model: str) -> Ticket:
        now_s = self._clock()
        if not plan.take(tokens, now_s):
            await self._refill(lambda: plan.take(tokens, self._clock()), lambda now_s: plan.short(tokens, now_s))
        return Ticket(plan, tokens, now_s, self._clock, self, model)

    def refused(self) -> dict[tuple[str, ...], float]:
        """Return `refusals` as the series of a metric: numbers of requests by measure."""
        return {(measure,): count for measure, count in self.refusals.items()}

    async def keep_small(self) -> None:
        """Periodically drop counters that no request needs any more. Runs until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_EVERY_S)
            if self._source.sweep():
                self.plans.forget()

    async def take_spend(self, plan: Plan, amount_nano: int) -> None:
        """Reserve money in the limits of a plan. Raises BudgetExceeded, BudgetUnavailable."""
        if not plan.take_spend(amount_nano, self._clock()):
            await self._refill(
                lambda: plan.take_spend(amount_nano, self._clock()),
                lambda now_s: shortages(plan.spend, amount_nano, now_s),
            )

    async def _refill(self, take: Callable[[], bool], short: Callable[[float], list[Shortage]]) -> None:
        """Wait until `take` succeeds. Waits are bounded, but not in order. Raises RateLimited and Overloaded."""
        gives_up_s = time.monotonic() + _PATIENCE_S
        while True:
            now_s = self._clock()
            lacking = short(now_s)
            hopeless = next(((have, need) for have, need in lacking if need > have.amount), None)
            if hopeless:
                self._refuse(refusal(*hopeless, 0.0))
            if lacking:
                refused = await self._source.refill(lacking)
                if refused:
                    self._refuse(refused)
                if time.monotonic() > gives_up_s:
                    raise Overloaded(_unknown(lacking[0][0]))
            if take():
                return

    def _refuse(self, refused: Refused) -> NoReturn:
        self.refusals[refused.counter.key.measure] += 1
        raise refused.error


def _unknown(counter: Counter) -> str:
    """Return the error text if it is unknown whether the limit is reached."""
    limit = in_words(counter.key, counter.amount)
    return f"What is left of the limit of {limit} is unknown now. Try again shortly."

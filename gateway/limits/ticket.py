"""One request's reservation in its caller's limits, from entry to end."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from gateway.limits.counters import Counter
from gateway.limits.headers import Headers
from gateway.limits.plans import NO_PLAN, Plan


class SpendHandler(Protocol):
    """Reserves a request's money."""

    async def take_spend(self, plan: Plan, amount_nano: int) -> None: ...


class Ticket(Struct, eq=False):
    """The amounts that a request has reserved. One event loop owns it.

    It covers the limits on the requested `model`. If the answering model has `further` names, the limits
    on those have a ticket of their own, `beside`, which ends with this one.
    """

    plan: Plan
    tokens: int
    entered_s: float
    clock: Callable[[], float]
    desk: SpendHandler
    model: str = ""
    spend_nano: int = 0
    beside: "Ticket | None" = None
    further: tuple[str, ...] = ()
    debited: tuple[Counter, ...] = ()
    """The limits on money that the request was charged to, once it has left."""

    async def reserve_spend(self, amount_nano: int) -> None:
        """Reserve a further amount, in nano-USD, in addition to what is reserved already.

        Raises:
            BudgetExceeded: a limit on money has less left.
            BudgetUnavailable: the remainder is unknown.
        """
        if amount_nano and self.plan.spend:
            await self.desk.take_spend(self.plan, amount_nano)
            self.spend_nano += amount_nano

    async def cover(self, amount_nano: int) -> None:
        """Raise the whole reservation to this amount, also in the limits on a model that answers instead.

        Raises BudgetExceeded, BudgetUnavailable.
        """
        if amount_nano > self.spend_nano:
            await self.reserve_spend(amount_nano - self.spend_nano)
        if self.beside:
            await self.beside.cover(amount_nano)

    def uncover(self, amount_nano: int) -> None:
        """Lower the whole reservation to this amount, as the rest of the funds was not reserved. Never raises."""
        if self.spend_nano > amount_nano:
            _settle(self.plan.spend, self.spend_nano - amount_nano, 0, self.clock())
            self.spend_nano = amount_nano
        if self.beside:
            self.beside.uncover(amount_nano)

    def correct(self, more_nano: int) -> None:
        """Correct the cost by `more_nano`, which may be negative, after the request has left. Never raises."""
        _settle(self.debited, 0, more_nano, self.clock())
        if self.beside:
            self.beside.correct(more_nano)

    def put_beside(self, other: "Ticket | None", further: tuple[str, ...] = ()) -> None:
        """Set the ticket for the names of the model to try next; end that of the model tried before."""
        before, self.beside, self.further = self.beside, other, further
        if before:
            before.leave(0, 0, is_served=False)

    def leave(self, tokens: int, spend_nano: int, *, is_served: bool | None = None) -> None:
        """End the request with the tokens and nano-USD it used; give back the rest. Never raises.

        A request that was not served does not count at all. If `is_served` is None, a request that used nothing
        was not served.
        """
        plan, self.plan = self.plan, NO_PLAN
        self.debited = plan.spend
        now_s = self.clock()
        for counter in plan.slots:
            counter.left += 1
            counter.held -= 1
        if is_served is None:
            is_served = bool(tokens or spend_nano)
        for counter in plan.requests:
            counter.tickets -= 1
            if not is_served:
                counter.untake(1, self.entered_s, now_s)
        reserved = self.tokens
        # As in `_settle`, but in one pass, because this runs for every request.
        for counter in plan.tokens:
            counter.tickets -= 1
            if now_s >= counter.ends_s:
                counter.roll(now_s)
            counter.held -= reserved
            counter.taken += tokens
            counter.left += reserved - tokens
        for counter in plan.spend:
            counter.tickets -= 1
        if plan.spend and (spend_nano or self.spend_nano):
            _settle(plan.spend, self.spend_nano, spend_nano, now_s)
        if self.beside:
            self.beside.leave(tokens, spend_nano, is_served=is_served)

    def headers(self) -> Headers:
        """Return headers, in OpenAI's names, for the request and token limits closest to being reached."""
        return self.plan.headers(self.clock())


def _settle(counters: tuple[Counter, ...], reserved: int, used: int, now_s: float) -> None:
    for counter in counters:
        if now_s >= counter.ends_s:
            counter.roll(now_s)
        counter.held -= reserved
        counter.taken += used
        counter.left += reserved - used

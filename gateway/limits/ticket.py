"""One request's place within its caller's limits, from entry to leaving."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from gateway.limits.counters import Counter
from gateway.limits.headers import Headers
from gateway.limits.plans import NO_PLAN, Plan


class SpendDesk(Protocol):
    """Who has a request's money reserved."""

    async def take_spend(self, plan: Plan, amount_nano: int) -> None: ...


class Ticket(Struct, eq=False):
    """What a request has reserved, once its plan was taken. One event loop owns it.

    It is within the limits of the `model` that was asked for. Where what answers has `further` names, the limits
    on those are a ticket of their own `beside` this, which ends with it.
    """

    plan: Plan
    tokens: int
    entered_s: float
    clock: Callable[[], float]
    desk: SpendDesk
    model: str = ""
    spend_nano: int = 0
    beside: "Ticket | None" = None
    further: tuple[str, ...] = ()
    debited: tuple[Counter, ...] = ()
    """The limits on money that it was taken from, once it has left."""

    async def reserve_spend(self, amount_nano: int) -> None:
        """The most that the request may cost, in addition to what is reserved already.

        Raises:
            BudgetExceeded: a limit on money has less left.
            BudgetUnavailable: nobody can say what is left.
        """
        if amount_nano and self.plan.spend:
            await self.desk.take_spend(self.plan, amount_nano)
            self.spend_nano += amount_nano

    async def cover(self, amount_nano: int) -> None:
        """Have so much reserved in all, also within the limits of the model that answers in another's place.

        Raises BudgetExceeded, BudgetUnavailable.
        """
        if amount_nano > self.spend_nano:
            await self.reserve_spend(amount_nano - self.spend_nano)
        if self.beside:
            await self.beside.cover(amount_nano)

    def uncover(self, amount_nano: int) -> None:
        """Have no more than so much reserved in all: the rest was not put aside after all. Never raises."""
        if self.spend_nano > amount_nano:
            _settle(self.plan.spend, self.spend_nano - amount_nano, 0, self.clock())
            self.spend_nano = amount_nano
        if self.beside:
            self.beside.uncover(amount_nano)

    def correct(self, more_nano: int) -> None:
        """It has left, and came to so much more, or less, than it said then. Never raises."""
        _settle(self.debited, 0, more_nano, self.clock())
        if self.beside:
            self.beside.correct(more_nano)

    def put_beside(self, other: "Ticket | None", further: tuple[str, ...] = ()) -> None:
        """What is to answer has other names than the one asked for, or than the one before, which did not."""
        before, self.beside, self.further = self.beside, other, further
        if before:
            before.leave(0, 0, is_served=False)

    def leave(self, tokens: int, spend_nano: int, *, is_served: bool | None = None) -> None:
        """The request has ended and came to this; what it did not use is given back. Never raises.

        A request that was not served does not count at all; without the caller's word, one that came to nothing
        was not served.
        """
        plan, self.plan = self.plan, NO_PLAN
        self.debited = plan.spend
        now_s = self.clock()
        for counter in plan.slots:
            counter.left += 1
            counter.held -= 1
        for counter in plan.lasting:
            counter.tickets -= 1
        if plan.tokens:
            _settle(plan.tokens, self.tokens, tokens, now_s)
        if plan.spend and (spend_nano or self.spend_nano):
            _settle(plan.spend, self.spend_nano, spend_nano, now_s)
        if is_served is None:
            is_served = bool(tokens or spend_nano)
        if not is_served:
            for counter in plan.requests:
                counter.untake(1, self.entered_s, now_s)
        if self.beside:
            self.beside.leave(tokens, spend_nano, is_served=is_served)

    def headers(self) -> Headers:
        """What the limits on requests and tokens that are nearest have left, in OpenAI's names."""
        return self.plan.headers(self.clock())


def _settle(counters: tuple[Counter, ...], reserved: int, used: int, now_s: float) -> None:
    for counter in counters:
        if now_s >= counter.ends_s:
            counter.roll(now_s)
        counter.held -= reserved
        counter.taken += used
        counter.left += reserved - used

"""The state of a request in progress: what each step produced, as a value that does not change afterwards.

A field is written by one module, which its text names; tests/gateway/requests/test_context.py checks that.
"""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from msgspec import Struct

from accounting.ledger.postings import FROM_CACHE
from accounting.rules.held import Hold
from gateway.billing.finished_request import NO_LANE
from gateway.cache.answers import Lead, Source
from gateway.errors import DeadlinePassed
from gateway.identity.caller import Caller
from gateway.lanes.allowance import Allowance
from gateway.lanes.base import Call, Offer
from gateway.limits.ticket import Ticket
from gateway.requests.tally import Tally
from gateway.routing.decision import Decision
from gateway.routing.dispatch import Dispatch

T = TypeVar("T")

UNDECIDED = Decision((), ())


class Admitted(Struct, frozen=True):
    """A request that has a place in the gateway, and what it reserved in its caller's limits."""

    ticket: Ticket | None = None
    lead: Lead | None = None
    """Set if identical requests may wait for this request's answer."""
    found: Source | None = None
    """The source of an answer that needed no backend."""
    found_s: float | None = None
    """When that answer was found."""


OUTSIDE = Admitted()
"""The state of a request that is not admitted yet, or that is preemptible: it counts against no limit here."""


class DecidedCall(Struct, frozen=True):
    """The call as backends get it, and when a backend was chosen and had a free slot."""

    call: Call
    at_s: float


class Asked(Struct, frozen=True):
    """The backend that the request goes to; `dispatch` is None until it is asked."""

    offer: Offer
    dispatch: Dispatch | None = None
    may_charge: bool = False
    """Whether it is a paid backend that may have the request, and has neither failed nor refused."""


class RequestContext(Struct):
    """The state of a request. Times are seconds since its start; `started_ns` is wall clock in nanoseconds."""

    call: Call
    """As the caller sent it. Written by gateway.requests.context."""
    caller: Caller
    """Written by gateway.requests.context."""
    started_ns: int
    """Written by gateway.requests.context."""
    began_s: float
    """In perf_counter seconds. Written by gateway.requests.context."""
    decision: Decision = UNDECIDED
    """The ranking at this moment. Written by gateway.requests.queue_slot."""
    admitted: Admitted = OUTSIDE
    """Written by gateway.requests.entry."""
    slot: str | None = None
    """The label of the backend at which the request has a slot. Written by gateway.requests.queue_slot."""
    decided: DecidedCall | None = None
    """Written by gateway.requests.serve."""
    asked: Asked | None = None
    """Written by gateway.requests.opener."""
    opened_s: float | None = None
    """When the backend's first bytes came. Written by gateway.requests.opener."""
    may_pay: bool = True
    """Whether the caller's funds cover candidates that charge. Written by gateway.requests.opener."""
    refused_models: frozenset[str] = frozenset()
    """Models whose own limits have no room for the request. Written by gateway.requests.opener."""
    hold: Hold | None = None
    """Written by gateway.requests.holds."""
    allowance: Allowance | None = None
    """The call's maximum cost at the offer being tried; None if it is free. Written by gateway.requests.holds."""
    paid_tokens: int = 0
    """The number of tokens of each choice that the hold covers. Written by gateway.requests.holds."""
    tally: Tally | None = None
    """The token estimate of an answer whose hold grows. Written by gateway.requests.incremental_hold."""
    continued_on: tuple[str, ...] = ()
    """The backends that continued a broken answer. Written by gateway.requests.failover_target."""
    is_left: bool = False
    """Whether the caller disconnected. Written by gateway.requests.serve."""

    @classmethod
    def begin(cls, call: Call, caller: Caller, decision: Decision = UNDECIDED) -> "RequestContext":
        return cls(call, caller, time.time_ns(), time.perf_counter(), decision)

    @property
    def offer(self) -> Offer | None:
        return None if self.asked is None else self.asked.offer

    @property
    def dispatch(self) -> Dispatch | None:
        return None if self.asked is None else self.asked.dispatch

    @property
    def sent_call(self) -> Call:
        """The call as backends get it."""
        return self.call if self.decided is None else self.decided.call

    @property
    def first_byte_s(self) -> float | None:
        """When there was an answer, from a backend or without one."""
        return self.admitted.found_s if self.opened_s is None else self.opened_s

    @property
    def lane(self) -> str:
        """The source of the answer, for headers, metrics and the ledger."""
        if self.asked is not None:
            return self.asked.offer.lane
        return FROM_CACHE if self.admitted.found else NO_LANE

    @property
    def time_left_s(self) -> float | None:
        """The seconds left for the first token; None if the request sets no deadline."""
        extras = self.call.request.millrace
        if extras is None or extras.deadline_s is None:
            return None
        return max(0.0, extras.deadline_s - self.elapsed_s)

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self.began_s

    def in_time(self, doing: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Return `doing`, within the time that the request allows: awaiting it may raise DeadlinePassed."""
        if self.call.request.millrace is None or (left_s := self.time_left_s) is None:
            return doing
        return self._within(left_s, doing)

    async def _within(self, left_s: float, doing: Coroutine[Any, Any, T]) -> T:
        try:
            async with asyncio.timeout(left_s) as bound:
                return await doing
        except TimeoutError:
            if not bound.expired():
                raise
            raise DeadlinePassed(self._why_late(left_s)) from None

    def _why_late(self, left_s: float) -> str:
        why = "no backend has received it yet"
        if self.asked:
            why = f"{self.asked.offer.label} had the request for {left_s:.1f} s of it"
        return f"The answer did not begin within deadline_s: {why}. Allow more time, or try again."

"""The state of a request in progress, and how it ended."""

import time

from msgspec import Struct

from accounting.ledger.postings import FROM_CACHE
from accounting.rules.held import Hold
from gateway.billing.finished_request import NO_LANE
from gateway.cache.answers import Lead, Source
from gateway.identity.caller import Caller
from gateway.lanes.allowance import Allowance
from gateway.lanes.base import Call, Offer
from gateway.limits.ticket import Ticket
from gateway.requests.tally import Tally
from gateway.routing.decision import Decision
from gateway.routing.dispatch import Dispatch

UNDECIDED = Decision((), ())


class RequestContext(Struct):
    """The state of a request. Times are perf_counter seconds; `started_ns` is wall clock in nanoseconds."""

    call: Call
    caller: Caller
    decision: Decision
    started_ns: int
    began_s: float
    offer: Offer | None = None
    hold: Hold | None = None
    decided_s: float | None = None
    """When the backend was chosen and had a free slot."""
    first_byte_s: float | None = None
    has_place: bool = False
    ticket: Ticket | None = None
    dispatch: Dispatch | None = None
    turn: str | None = None
    """The label of the backend at which the request has a slot."""
    lead: Lead | None = None
    """Whether identical requests wait for its answer."""
    may_pay: bool = True
    """Whether the caller's funds cover candidates that charge."""
    refused_models: frozenset[str] = frozenset()
    """Models whose own limits have no room for the request."""
    found: Source | None = None
    """The source of an answer that needed no backend."""
    allowance: Allowance | None = None
    """The call's maximum cost at the offer being tried; None if it is free."""
    paid_tokens: int = 0
    """The number of tokens of each choice that the hold covers."""
    has_asked: bool = False
    """Whether a paid backend may have the request, and has neither failed nor refused."""
    is_left: bool = False
    """Whether the caller disconnected."""
    tally: Tally | None = None
    """The token estimate of an answer whose hold grows while it streams."""

    @classmethod
    def begin(cls, call: Call, caller: Caller, decision: Decision = UNDECIDED) -> "RequestContext":
        return cls(call, caller, decision, time.time_ns(), time.perf_counter())

    @property
    def lane(self) -> str:
        """The source of the answer, for headers, metrics and the ledger."""
        if self.offer is not None:
            return self.offer.lane
        return FROM_CACHE if self.found else NO_LANE

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

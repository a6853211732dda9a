"""What is known of a request on its way, and how it ended."""

import time
from dataclasses import dataclass

from accounting.postings import Outcome
from accounting.rules import Hold
from gateway.identity.caller import Caller
from gateway.lanes.base import Call, Offer
from gateway.routing.decision import Decision


@dataclass(slots=True)
class Trip:
    """What is known of a request so far. Times are perf_counter seconds, `started_ns` wall clock."""

    call: Call
    caller: Caller
    decision: Decision
    started_ns: int
    began_s: float
    offer: Offer | None = None
    hold: Hold | None = None
    first_byte_s: float | None = None

    @classmethod
    def begin(cls, call: Call, caller: Caller, decision: Decision) -> "Trip":
        return cls(call, caller, decision, time.time_ns(), time.perf_counter())

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self.began_s


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request ended: the status sent, whether the answer was whole, what went wrong in words."""

    status: int
    outcome: Outcome
    problem: str = ""

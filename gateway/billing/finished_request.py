"""The record of an ended request: only what the ledger, the request log and the access log need.

It has neither the prompt nor the answer, so waiting records keep no bodies in memory. The exceptions are the few
answers whose text a tokenizer is to count.
"""

from typing import Literal

from msgspec import Struct

from accounting.ledger.postings import Outcome
from gateway.billing.recount import Recount
from gateway.billing.spool import Settlement
from gateway.dialects.openai import Kind
from gateway.routing.decision import Decision

NO_LANE = "none"
Bearer = Literal["none", "gateway", "seller", "caller"]


class Ending(Struct, frozen=True):
    """How a request ended: the status sent, whether the answer was whole, and the error as text.

    `prompt` is who bears the cost of a prompt that a paid backend received, if no text was delivered.
    """

    status: int
    outcome: Outcome
    problem: str = ""
    prompt: Bearer = "none"


class Ended(Struct, frozen=True, gc=False):
    """One ended request. `problem` is empty for an answer; `address` is the caller's if known."""

    settlement: Settlement
    kind: Kind
    backend: str
    decision: Decision
    status: int
    problem: str
    key_prefix: str
    is_stream: bool
    traceparent: str = ""
    address: str = ""
    finish_reasons: tuple[str, ...] = ()
    recount: Recount | None = None
    decided_ms: int | None = None

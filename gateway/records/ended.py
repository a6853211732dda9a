"""What is left of a request when it is over: what the books, the request log and the access log need, and no more.

Neither the prompt nor the answer is among it, so that what waits to be written holds no bodies in memory: but for
the few answers whose text a tokenizer is to count.
"""

from typing import Literal

from msgspec import Struct

from accounting.ledger.postings import Outcome
from gateway.openai import Kind
from gateway.records.recount import Recount
from gateway.records.spool import Settlement
from gateway.routing.decision import Decision

NO_LANE = "none"
Bearer = Literal["nobody", "gateway", "seller", "caller"]


class Ending(Struct, frozen=True):
    """How a request ended: the status sent, whether the answer was whole, and the error as text.

    `prompt` is who bears the cost of a prompt that a paid backend received, if no text was delivered.
    """

    status: int
    outcome: Outcome
    problem: str = ""
    prompt: Bearer = "nobody"


class Ended(Struct, frozen=True, gc=False):
    """One request that is over. `problem` is empty for an answer, `address` the caller's where it is known."""

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

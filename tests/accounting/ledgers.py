"""A gateway's ledger with a clock that tests set, and helpers that many tests use."""

from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from itertools import count
from types import TracebackType
from typing import Any

from sqlalchemy import Engine

from accounting.ledger.balances import Balance, balance
from accounting.ledger.health import BrokenRule, findings
from accounting.ledger.poster import Poster
from accounting.ledger.postings import Posted, Posting, UsageRecord
from accounting.rules import grants
from accounting.rules.held import Hold
from accounting.spending.holds import Holds
from accounting.spending.reaper import Reaper
from runtime.database import read_sessions, write_sessions

START_NS = 1_790_000_000 * 10**9
MINUTE_NS = 60 * 10**9
ANSWER_S = 60


class LedgerService(AbstractContextManager["LedgerService"]):
    """A poster that runs as long as the block, with all that reads and writes through it."""

    def __init__(self, engine: Engine, **poster_arguments: Any) -> None:
        self.now_ns = START_NS
        self.read = read_sessions(engine)
        self.poster = Poster(write_sessions(engine), clock_ns=lambda: self.now_ns, **poster_arguments)
        self.holds = Holds(self.poster, clock_ns=lambda: self.now_ns)
        self.reaper = Reaper(self.poster, self.read, clock_ns=lambda: self.now_ns)
        self._credits = count(1)

    def __enter__(self) -> "LedgerService":
        self.poster.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.poster.stop(ANSWER_S)

    def post(self, posting: Posting) -> Posted:
        return self.poster.submit(posting).result(ANSWER_S)

    def credit(self, user_id: str, amount_nano: int) -> Posted:
        return self.post(grants.manual_credit(f"{user_id}-{next(self._credits)}", user_id, amount_nano, "test"))

    def hold(self, request_id: str, user_id: str, amount_nano: int) -> Hold:
        return self.holds.place(request_id, user_id, amount_nano, self.now_ns + MINUTE_NS).result(ANSWER_S)

    def balance(self, code: str) -> Balance:
        with self.read() as session:
            return balance(session, code)

    def findings(self, *, deep: bool = True) -> list[BrokenRule]:
        with self.read() as session:
            return findings(session, self.now_ns, deep=deep)


def outcomes(futures: "Iterable[Future[Posted]]") -> list[str]:
    """Tell what became of each event: `posted`, `replayed`, or the name of the error."""
    return [outcome(future) for future in futures]


def outcome(future: "Future[Any]") -> str:
    error = future.exception(ANSWER_S)
    if error is not None:
        return type(error).__name__
    answer = future.result()
    return "replayed" if isinstance(answer, Posted) and answer.replayed else "posted"


def usage(request_id: str, **changes: Any) -> UsageRecord:
    """A usage row of an ordinary local request, with what a test wants changed."""
    fields: dict[str, Any] = {
        "request_id": request_id,
        "user_id": "ann",
        "department": "lab",
        "key_id": "key-1",
        "model": "tiny",
        "lane": "cluster",
        "provider": "",
        "prompt_tokens": 120,
        "cached_tokens": 20,
        "completion_tokens": 40,
        "count_source": "tokenizer",
        "outcome": "complete",
        "started_ns": START_NS,
        "duration_ms": 900,
        "ttft_ms": 45,
    }
    return UsageRecord(**(fields | changes))

"""A ledger that takes everything and answers nothing: a caller that needs many answers waits once, not for each."""

import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest
from sqlalchemy.orm import Session

from accounting.errors import LedgerUnavailable
from accounting.ledger.postings import Posted, Posting
from accounting.rules.held import CloudBill, Hold, Payer
from accounting.spending import lease_renewer
from accounting.spending.funding_sources import FundingLookup
from accounting.spending.lease import Lease
from accounting.spending.lease_renewal import Draw
from accounting.spending.lease_renewer import LeaseRenewer
from accounting.spending.leases import Leases
from gateway.billing import batch_settlement
from gateway.billing.batch_settlement import Settler
from gateway.billing.spool import Settlement
from tests.accounting.ledgers import usage

MANY = 100
ANSWER_S = 30.0


class Clock:
    """Stands still, unless somebody waits for an answer."""

    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    time_ns = staticmethod(time.time_ns)


class Unanswered(Future[Posted]):
    """Whoever waits for it waits for as long as they want to."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def result(self, timeout: float | None = None) -> Posted:
        if self.done():
            return super().result(timeout)
        assert timeout is not None
        self._clock.now_s += timeout
        raise TimeoutError


class Silent:
    """Takes every event, keeps it, and answers none but by hand."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.taken: list[Posting] = []
        self.answers: list[Future[Posted]] = []

    waiting = 0

    def submit(self, posting: Posting, *, urgent: bool = False) -> "Future[Posted]":
        self.taken.append(posting)
        self.answers.append(Unanswered(self.clock))
        return self.answers[-1]


def no_session() -> Session:
    raise AssertionError("nothing is read")


def read_nothing(_: Any) -> Any:
    raise AssertionError("nothing is read")


def settlements(count: int, lease: str = "") -> list[Settlement]:
    return [
        Settlement(
            usage(f"r{number}", lane="cloud"),
            Hold(f"r{number}", "ann", 50, 7, time.time_ns() + 10**12, lease),
            CloudBill("acme", 40, 25),
        )
        for number in range(count)
    ]


def test_what_is_settled_together_has_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = Silent()
    monkeypatch.setattr(batch_settlement, "time", silent.clock)
    began_s = silent.clock.now_s
    settler = Settler(silent, Leases(silent, no_session), read_nothing, answer_s=ANSWER_S)
    free = [Settlement(usage(f"free{number}"), None, None) for number in range(2_500)]
    settled = settler.settle([*settlements(MANY), *free])
    assert silent.clock.now_s - began_s == ANSWER_S
    assert all(isinstance(each, LedgerUnavailable) for each in settled)
    assert len({posting.idem_key for posting in silent.taken}) == MANY + 1, "after its time nothing more is sent"


def test_a_request_that_failed_after_its_lease_is_written_down_and_nothing_else() -> None:
    silent = Silent()

    class Answering(Silent):
        def submit(self, posting: Posting, *, urgent: bool = False) -> "Future[Posted]":
            answer = silent.submit(posting)
            answer.set_result(Posted(9, ()))
            return answer

    ledger = Answering()
    settler = Settler(ledger, Leases(ledger, no_session), read_nothing)
    (one,) = settlements(1, lease="gone")
    assert settler.settle([Settlement(one.usage, one.hold, None)]) == [9]
    assert [posting.kind for posting in silent.taken] == ["use"]


def test_a_turn_of_leases_has_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_renewer, "ANSWER_TIMEOUT_S", ANSWER_S)
    silent = Silent()
    monkeypatch.setattr(lease_renewer, "time", silent.clock)
    funding_lookup = FundingLookup(no_session)
    leases = []
    for number in range(MANY):
        payer = Payer(f"user{number}")
        lease = Lease(payer)
        lease.draws.append(Draw(f"r{number}", 10, Future()))
        # As if somebody had looked a moment ago: one account, whose credits the ledger knows.
        funding_lookup._remembered[payer] = (time.time_ns(), lease.funding)
        leases.append(lease)
    began_s = silent.clock.now_s
    assert not LeaseRenewer(silent, funding_lookup, threading.Lock(), time.time_ns).renew(leases)
    assert silent.clock.now_s - began_s == ANSWER_S
    assert all(lease.unanswered for lease in leases)

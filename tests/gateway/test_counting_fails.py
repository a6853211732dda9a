"""One answer that cannot be counted, or a batch that cannot be booked, costs nobody's charges."""

from collections import deque
from collections.abc import Iterable
from pathlib import Path

import pytest

from accounting.errors import TextNotCounted
from accounting.metering.delivered import Delivered, TokenCounter, count_delivered
from accounting.metering.tokenizers import Tokenizers
from gateway.billing.batch_settlement import Settled
from gateway.billing.finished_request import Ended
from gateway.billing.recount import Recount, Recounter
from gateway.billing.settlement_worker import SettlementWorker
from gateway.billing.spool import Settlement, Spool
from gateway.metrics.metrics import Metrics
from gateway.routing.decision import Decision
from tests.accounting.ledgers import usage


class Failing:
    """A tokenizer that fails as the library does: with nothing narrower than an Exception."""

    def no_truncation(self) -> None: ...

    def no_padding(self) -> None: ...

    def encode(self, text: str, **_: object) -> list[int]:
        raise Exception(f"no merges for {text!r}")


class Known(Tokenizers):
    def find(self, model: str) -> TokenCounter | None:
        return TokenCounter(Failing(), "0" * 64)  # type: ignore[arg-type]


class Settling:
    """A ledger that takes everything, or breaks."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.breaks = False

    def settle(self, settlements: Iterable[Settlement]) -> list[Settled]:
        if self.breaks:
            raise RuntimeError("nobody foresaw this")
        self.taken += [each.usage.request_id for each in settlements]
        return list(range(len(self.taken)))


def ended(request_id: str, recount: Recount | None = None) -> Ended:
    settlement = Settlement(usage(request_id))
    return Ended(settlement, "chat", "acme", Decision((), (), ""), 200, "", "mr-1", False, recount=recount)


def booked(tmp_path: Path, settler: Settling, answers: list[Ended]) -> Spool:
    """What is on disk after a settlement worker has had these, one batch, and has stopped."""
    spool, metrics = Spool(tmp_path / "unbooked.jsonl"), Metrics.create()
    worker = SettlementWorker(settler, spool, metrics, lambda _: None, Recounter(Known({}), metrics))  # type: ignore[arg-type]
    for answer in answers:
        worker.add(answer)
    worker.start()
    worker.stop(30)
    return spool


def test_a_tokenizer_s_failure_has_a_name() -> None:
    counter = Known({}).find("fast")
    with pytest.raises(TextNotCounted, match="Exception"):
        count_delivered(counter, Delivered("text that is told to nobody"))


def test_one_answer_that_cannot_be_counted_is_booked_with_all_others(tmp_path: Path) -> None:
    settler = Settling()
    bad = ended("bad", Recount("fast", (Delivered("x"),)))
    worse = ended("worse", Recount("fast", (None,)))  # type: ignore[arg-type]
    spool = booked(tmp_path, settler, [ended("good"), bad, worse, ended("last")])
    assert (settler.taken, spool.read()) == (["good", "bad", "worse", "last"], [])


def test_a_batch_that_breaks_its_worker_is_on_disk(tmp_path: Path) -> None:
    settler = Settling()
    settler.breaks = True
    spool = booked(tmp_path, settler, [ended("one"), ended("two")])
    assert [entry.settlement.usage.request_id for entry in spool.read()] == ["one", "two"]


def test_what_ends_in_the_moment_in_which_the_worker_stops_is_on_disk(tmp_path: Path) -> None:
    spool, metrics = Spool(tmp_path / "unbooked.jsonl"), Metrics.create()
    worker = SettlementWorker(Settling(), spool, metrics, lambda _: None, Recounter(Known({}), metrics))  # type: ignore[arg-type]

    class Interrupted(deque[Ended]):
        def append(self, ended: Ended) -> None:
            worker.stop(30)
            super().append(ended)

    worker.add(ended("one"))
    worker._waiting = Interrupted(worker._waiting)
    worker.add(ended("two"))
    worker.add(ended("three"))
    assert [entry.settlement.usage.request_id for entry in spool.read()] == ["one", "two", "three"]


def test_what_the_clerk_takes_in_the_moment_in_which_it_stops_is_on_disk(tmp_path: Path) -> None:
    spool, metrics = Spool(tmp_path / "unbooked.jsonl"), Metrics.create()
    worker = SettlementWorker(Settling(), spool, metrics, lambda _: None, Recounter(Known({}), metrics))  # type: ignore[arg-type]
    taken: list[Ended] = []

    class Overtaken(deque[Ended]):
        def popleft(self) -> Ended:
            worker._waiting = deque(self)
            self.clear()
            taken.extend(worker._next_batch(0.0))
            return super().popleft()

    worker._waiting = Overtaken([ended("one"), ended("two")])
    worker.stop(30)
    assert len(taken) == 2
    assert [entry.settlement.usage.request_id for entry in spool.read()] == ["one", "two"]

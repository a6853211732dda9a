"""One epoch's pipeline as its coordinator sees it: the steps under way, and whether an answer is late."""

import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from cluster import wire
from cluster.engine.scheduler import Scheduler
from cluster.engine.sealing import Seal
from cluster.engine.sequence import Sequence
from cluster.errors import FrameInvalid
from cluster.generation import SampledToken

# The limit while a pipeline's pace is unknown: a prefill chunk on slow machines takes a while.
FIRST_STEP_S = 120.0
# A step is late if it takes this many times as long as steps of its size, but never before LATE_S.
LATE_FACTOR = 8.0
LATE_S = 1.8
# Two machines' clocks measure the same span slightly differently.
_CLOCK_ERROR_S = 0.01
# A pipeline crawls if its late steps outweigh the others by CRAWL_S. Steps shorter than CRAWL_STEP_S do not count.
CRAWL_STEP_S = 0.05
CRAWL_S = 1.5


@dataclass(frozen=True, slots=True)
class _Sent:
    """A step under way.

    `expected_s` is None while the pipeline's pace is unknown, `usual_s` if no step of this size has been seen.
    """

    since_s: float
    expected_s: float | None
    usual_s: float | None
    slots: list[int]
    is_replay: bool


@dataclass(slots=True)
class Pipeline:
    """The steps of one pipeline.

    `scheduler` may have served an earlier pipeline with the same partition; the stages `fresh` lack its KV cache.
    `clock` gives monotonic seconds.
    """

    order: wire.AssignCoordinator
    vocabulary: int
    scheduler: Scheduler
    fresh: set[int]
    clock: Callable[[], float] = time.monotonic
    is_closed: bool = False
    _sent: dict[int, _Sent] = field(default_factory=dict)
    _seal: Seal | None = field(init=False)
    _began_s: float = field(init=False)
    _heard_s: float = 0.0
    _crawled_s: float = 0.0

    def __post_init__(self) -> None:
        self._began_s = self.clock()
        self._seal = Seal(self.order.seal_key) if self.order.seal_key else None

    @property
    def is_waiting(self) -> bool:
        """Whether a step is under way."""
        return bool(self._sent)

    @property
    def computing(self) -> set[Sequence]:
        """Return the sequences that have rows under way, or are being restored."""
        slots = {slot for sent in self._sent.values() for slot in sent.slots}
        return {sequence for sequence in self.scheduler.running if sequence.slot in slots}

    def close(self, held: list[bytes] | None = None) -> float:
        """Note that the first frame has come back, so that steps may follow.

        `held` are the saved blocks that it found at every stage. Return the pipeline's round trip in ms.
        """
        self.is_closed = True
        self._heard_s = self.clock()
        self.scheduler.saved.learn(held)
        self.scheduler.restart(self.order.epoch, sorted(self.fresh))
        return 1000 * (self._heard_s - self._began_s)

    def next_frame(self) -> tuple[wire.Step, memoryview | bytes] | None:
        """Return the next step and its payload, or None while there is nothing to send."""
        work = self.scheduler.next_step() if self.is_closed else None
        return self._note(*work) if work else None

    def census_frame(self) -> tuple[wire.Step, memoryview | bytes] | None:
        """In a quiet moment, return a step that makes every stage compare what it holds with the counts here."""
        step = self.scheduler.census() if self.is_closed else None
        return self._note(step, []) if step else None

    def commit(self, sampled: wire.Sampled) -> Iterator[tuple[Sequence, SampledToken]]:
        """Take a step's answer.

        Raise FrameInvalid if it matches no step, or has tokens that no stage can have drawn.
        """
        named = [token_id for token in sampled.tokens for token_id in _ids(token)]
        if named and not 0 <= min(named) <= max(named) < self.vocabulary:
            raise FrameInvalid("the last stage drew a token outside of the vocabulary")
        now_s = self.clock()
        sent = self._sent.get(sampled.batch)
        if sent:
            self._check_spent(sampled.spent_ns, now_s - sent.since_s)
        # The pace of a crawling pipeline is no measure of what a step should take.
        crawls = sent is not None and self._measure(sent, now_s - max(sent.since_s, self._heard_s))
        committed = self.scheduler.commit(sampled, now_s - sent.since_s if sent else 0.0, learn=not crawls)
        if sent:
            del self._sent[sampled.batch]
            if not sent.is_replay:  # Replays go first: by now they have all been answered.
                self.fresh = set()
        self._heard_s = now_s
        return committed

    def _check_spent(self, spent_ns: list[int], took_s: float) -> None:
        """Raise FrameInvalid if a stage claims more busy time than the step was under way.

        Stages report their busy time themselves, so a stage may report too much.
        """
        most_ns = int(1e9 * (took_s + _CLOCK_ERROR_S))
        if len(spent_ns) != self.order.stages or not all(0 <= spent <= most_ns for spent in spent_ns):
            raise FrameInvalid(
                f"the stages claim busy times longer than the {took_s:.3f} s that the step was under way"
            )

    @property
    def has_crawled(self) -> bool:
        return self._crawled_s > CRAWL_S

    def lateness(self) -> str | None:
        """Return why this pipeline counts as stuck, or None."""
        if self.has_crawled:
            return f"steps take more than {LATE_FACTOR:.0f} times as long as before"
        if not self._sent:
            return None
        oldest = next(iter(self._sent.values()))
        # Answers come in the order of steps: the oldest one has had the pipeline alone since the previous one
        # returned.
        waited_s = self.clock() - max(oldest.since_s, self._heard_s)
        late_s = FIRST_STEP_S if oldest.expected_s is None else max(LATE_S, LATE_FACTOR * oldest.expected_s)
        return f"the pipeline has not answered a step for {waited_s:.1f} s" if waited_s > late_s else None

    def forgive(self) -> None:
        """Restart the clock after this process itself stood still: no other machine was late."""
        self._heard_s = self.clock()

    def _note(self, step: wire.Step, token_ids: list[int]) -> tuple[wire.Step, memoryview | bytes]:
        if self._seal:
            self._seal.close(step)
        costs = self.scheduler.costs
        # How long a disk takes is unknown.
        is_known = costs.is_known and not step.restores
        expected_s = costs.step_s(step.rows, step.pairs) if is_known else None
        usual_s = expected_s if costs.has_seen(step.rows) else None
        slots = [*step.slots, *(order.slot for order in step.restores)]
        self._sent[step.batch] = _Sent(self.clock(), expected_s, usual_s, slots, bool(step.replay))
        return step, memoryview(array("i", token_ids)).cast("B") if token_ids else b""

    def _measure(self, sent: _Sent, took_s: float) -> bool:
        """Note how long a step took, in seconds. Return whether it crawled."""
        crawls = sent.usual_s is not None and took_s > max(CRAWL_STEP_S, LATE_FACTOR * sent.usual_s)
        self._crawled_s = max(0.0, self._crawled_s + (took_s if crawls else -took_s))
        return crawls


def warm_up(epoch: int) -> wire.Step:
    """Return the first frame of a pipeline: empty, answered as batch 0 once every link is up."""
    return wire.Step(
        epoch=epoch,
        batch=0,
        slots=[],
        starts=[],
        counts=[],
        wanted=[],
        drafts=[],
        opened=[],
        moves=[],
        replay=[],
        census=None,
        is_reset=False,
        spent_ns=[],
    )


def is_warm_up(sampled: wire.Sampled) -> bool:
    return sampled.batch == 0


def _ids(token: SampledToken) -> Iterator[int]:
    yield token.token_id
    for other in token.top:
        yield other.token_id

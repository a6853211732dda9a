"""Continuous batching: whatever joins, leaves or is pushed out, every row is computed once and in order."""

from collections import defaultdict, deque
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.generation import SampledToken, Sampling
from cluster.plan import BLOCK_TOKENS, CHUNK_TOKENS
from cluster.scheduler import Scheduler, Sequence
from cluster.wire import MESSAGE_BYTES_MAX, Step, encode


class Stages:
    """What real stages would hold: for every slot how many positions it has. Fails on any gap or overlap."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._lengths: dict[int, int] = {}

    def run(self, step: Step) -> list[SampledToken]:
        for slot in step.closed:
            self._lengths.pop(slot, None)
        for opened in step.opened:
            assert opened.slot not in self._lengths
            self._lengths[opened.slot] = 0
        assert len(set(step.slots)) == len(step.slots)
        for slot, start, count in zip(step.slots, step.starts, step.counts, strict=True):
            assert self._lengths[slot] == start, "rows must follow the ones before"
            self._lengths[slot] = start + count
        held = sum(-(-length // BLOCK_TOKENS) for length in self._lengths.values())
        assert held <= self._blocks, "more blocks than there are"
        return [SampledToken(start + count) for start, count, wanted in _groups(step) if wanted]


def _groups(step: Step) -> list[tuple[int, int, bool]]:
    return list(zip(step.starts, step.counts, step.wanted, strict=True))


class Run:
    """A scheduler at work: requests arrive, leave and finish in an order that `chance` decides."""

    def __init__(
        self, scheduler: Scheduler, jobs: list[tuple[int, int]], cancels: set[int], chance: Random
    ) -> None:
        self.scheduler = scheduler
        self.machine = Stages(scheduler.kv_blocks)
        self.jobs = list(enumerate(jobs))
        self.cancels = cancels
        self.chance = chance
        self.doomed: list[Sequence] = []
        self.wanted: dict[Sequence, int] = {}
        self.got: dict[Sequence, list[int]] = defaultdict(list)
        self.flights: deque[tuple[Step, list[SampledToken]]] = deque()

    @property
    def is_over(self) -> bool:
        return not (self.jobs or self.doomed or self.flights or self.scheduler.running or self.scheduler.waiting)

    def arrive(self) -> None:
        if self.jobs and self.chance.random() < 0.3:
            number, (prompt, output) = self.jobs.pop(0)
            sequence = Sequence(list(range(prompt)), prompt, Sampling())
            self.wanted[sequence] = output
            self.scheduler.add(sequence)
            self.doomed += [sequence] if number in self.cancels else []

    def leave(self) -> None:
        if self.doomed and self.chance.random() < 0.2:
            sequence = self.doomed.pop()
            if not sequence.finished:
                self.scheduler.finish(sequence)
            self.wanted.pop(sequence, None)

    def send(self) -> None:
        while work := self.scheduler.next_step():
            step, token_ids = work
            assert step.rows == len(token_ids) <= CHUNK_TOKENS + self.scheduler.slots
            self.flights.append((step, self.machine.run(step)))

    def receive(self) -> None:
        if self.flights:
            step, tokens = self.flights.popleft()
            for sequence, token in self.scheduler.commit(step.batch, tokens, 1000):
                self.got[sequence].append(token.token_id)
                if len(self.got[sequence]) == self.wanted.get(sequence):
                    self.scheduler.finish(sequence)


@settings(max_examples=150, deadline=None)
@given(
    stages=st.integers(1, 4),
    slots=st.integers(1, 6),
    blocks=st.integers(8, 20),
    jobs=st.lists(st.tuples(st.integers(1, 400), st.integers(1, 90)), min_size=1, max_size=12),
    cancels=st.sets(st.integers(0, 11)),
    chance=st.randoms(use_true_random=False),
)
def test_every_sequence_gets_its_tokens_in_order(
    stages: int, slots: int, blocks: int, jobs: list[tuple[int, int]], cancels: set[int], chance: Random
) -> None:
    scheduler = Scheduler(epoch=1, stages=stages, slots=slots, kv_blocks=blocks)
    run = Run(scheduler, jobs, cancels, chance)
    for _ in range(20_000):
        run.arrive()
        run.leave()
        run.send()
        run.receive()
        scheduler.check_integrity()
        if run.is_over:
            break
    assert run.is_over, "the scheduler does not come to an end"
    for sequence, output in run.wanted.items():
        # The stages answer with each token's position, so the right answer is known.
        assert run.got[sequence] == list(range(sequence.prompt_tokens, sequence.prompt_tokens + output))
    assert scheduler.blocks_free == blocks


def test_micro_batches_share_the_decoding_sequences() -> None:
    """With two stages and eight sequences two batches of four are in flight, not one of eight."""
    scheduler = Scheduler(epoch=1, stages=2, slots=8, kv_blocks=64)
    for _ in range(8):
        scheduler.add(Sequence([1, 2, 3], 3, Sampling()))
    prefill = scheduler.next_step()
    assert prefill
    scheduler.commit(prefill[0].batch, [SampledToken(9)] * 8, 1)
    sizes = [len(work[0].slots) for _ in range(2) if (work := scheduler.next_step())]
    assert sizes == [4, 4]
    assert scheduler.next_step() is None


def test_a_long_prompt_does_not_hold_up_decoding() -> None:
    scheduler = Scheduler(epoch=1, stages=1, slots=2, kv_blocks=64)
    first = Sequence([1, 2], 2, Sampling())
    scheduler.add(first)
    step, _ = scheduler.next_step() or (None, None)
    assert step
    scheduler.commit(step.batch, [SampledToken(3)], 1)
    scheduler.add(Sequence(list(range(1000)), 1000, Sampling()))
    step, _ = scheduler.next_step() or (None, None)
    assert step
    assert sorted(step.counts) == [1, CHUNK_TOKENS]


def test_a_step_opens_no_more_than_a_frame_holds() -> None:
    """Long histories that penalties need travel with the step that opens their slots."""
    scheduler = Scheduler(epoch=1, stages=1, slots=8, kv_blocks=100_000)
    for _ in range(8):
        scheduler.add(Sequence(list(range(200_000)), 200_000, Sampling(frequency_penalty=0.5)))
    opened = 0
    while opened < 8:
        step, _ = scheduler.next_step() or (None, None)
        assert step
        assert len(encode(step)) < MESSAGE_BYTES_MAX
        opened += len(step.opened)
        tokens = [SampledToken(1) for wanted in step.wanted if wanted]
        scheduler.commit(step.batch, tokens, 1)

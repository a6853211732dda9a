"""Continuous batching: sequences join, leave, are preempted or lost, and every token has the right context."""

from collections import defaultdict, deque
from itertools import takewhile
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.engine.scheduler import Scheduler
from cluster.engine.sequence import Sequence
from cluster.engine.slots import blocks_of
from cluster.errors import FrameInvalid
from cluster.generation import SampledToken, Sampling
from cluster.models.stage_spec import CHUNK_TOKENS
from cluster.plans.plan import BLOCK_TOKENS
from cluster.wire import MESSAGE_BYTES_MAX, Restore, Sampled, Step, encode
from tests.examples import examples


def successor(context: list[int]) -> int:
    """Return the one right token after a context.

    It depends on enough tokens to reveal a wrong one, and repeats often enough for drafts to be right sometimes.
    """
    return (sum(context[-3:]) + len(context) // 50 + context[0]) % 5


class Stage:
    """The content of a real stage: for every slot, the tokens in its KV cache, and by name those on its disk."""

    def __init__(self, index: int, blocks: int, disk: dict[bytes, list[int]] | None = None) -> None:
        self.index = index
        self.blocks = blocks
        self.held: dict[int, list[int]] = {}
        self.disk = {} if disk is None else disk

    def run(self, step: Step, rows: list[int]) -> list[int]:
        """Compute `rows`, given as their tokens. Return the tokens of the rows that go to the next stage."""
        if step.is_reset:
            assert step.census is not None
            # A slot with more than the count had another owner.
            before = self.held
            self.held = {slot: before.get(slot, []) for slot, _ in step.census}
            for slot, blocks in step.census:
                if blocks_of(len(self.held[slot])) > blocks:
                    self.held[slot] = []
        for save in step.saves:
            for at, name in enumerate(save.names):
                block = self.held[save.slot][at * BLOCK_TOKENS : (at + 1) * BLOCK_TOKENS]
                assert self.disk.setdefault(name, block) == block != []
        for move in step.moves:
            if move.source < 0:
                self.held.pop(move.slot, None)
            else:
                assert len(self.held[move.source]) >= move.tokens
                self.held[move.slot] = self.held[move.source][: move.tokens]
        step.restores = [self.restore(order) for order in step.restores]
        if step.replay and self.index not in step.replay:
            groups = zip(step.slots, step.starts, step.counts, strict=True)
            return [token for slot, start, count in groups for token in self.held[slot][start : start + count]]
        assert len(set(step.slots)) == len(step.slots)
        at = 0
        for slot, start, count in zip(step.slots, step.starts, step.counts, strict=True):
            held = self.held.setdefault(slot, [])
            assert start <= len(held), "rows must follow the ones before"
            held[start:] = rows[at : at + count]
            at += count
        assert sum(blocks_of(len(tokens)) for tokens in self.held.values()) <= self.blocks, (
            "more blocks than the stage has"
        )
        return rows

    def restore(self, order: Restore) -> Restore:
        """Restore three blocks at most, as a slow disk would, and none behind one that is lost."""
        names = list(takewhile(self.disk.__contains__, order.names[:3]))
        held = self.held.setdefault(order.slot, [])
        start = order.first_block * BLOCK_TOKENS
        assert start <= len(held)
        held[start:] = [token for name in names for token in self.disk[name]]
        return Restore(order.slot, order.first_block, order.blocks, names)

    def sample(self, step: Step) -> tuple[list[SampledToken], list[int]]:
        tokens: list[SampledToken] = []
        counts: list[int] = []
        drafts = step.drafts or [[]] * len(step.slots)
        for slot, start, count, wanted, draft in zip(
            step.slots, step.starts, step.counts, step.wanted, drafts, strict=True
        ):
            before = len(tokens)
            for at in range(wanted):
                token = successor(self.held[slot][: start + count - wanted + at + 1])
                tokens.append(SampledToken(token))
                if at < len(draft) and draft[at] != token:
                    break
            counts += [len(tokens) - before] if wanted else []
        return tokens, counts


class Run:
    """A working pipeline: requests arrive, leave and finish, and stages are lost, in a random order."""

    def __init__(
        self, scheduler: Scheduler, jobs: list[tuple[int, int]], cancels: set[int], chance: Random
    ) -> None:
        self.scheduler = scheduler
        self.stages = [Stage(index, scheduler.kv_blocks) for index in range(scheduler.stages)]
        self.jobs = list(enumerate(jobs))
        self.cancels = cancels
        self.chance = chance
        self.doomed: list[Sequence] = []
        self.restored = 0
        self.wanted: dict[Sequence, int] = {}
        self.got: dict[Sequence, list[int]] = defaultdict(list)
        # Steps under way, oldest first, with their rows for the next stage and the number of passed stages.
        self.flights: deque[tuple[Step, list[int], int]] = deque()
        self.answers: dict[int, tuple[list[SampledToken], list[int]]] = {}

    @property
    def is_over(self) -> bool:
        return not (self.jobs or self.doomed or self.flights or self.scheduler.running or self.scheduler.waiting)

    def arrive(self) -> None:
        if self.jobs and self.chance.random() < 0.3:
            number, (prompt, output) = self.jobs.pop(0)
            # Prompts share beginnings of all lengths.
            tokens = [at // 3 % 4 for at in range(prompt)]
            for at in range(self.chance.choice([0, prompt // 2, prompt]), prompt):
                tokens[at] = self.chance.randrange(4)
            yields = self.chance.random() < 0.3
            sequence = Sequence(tokens, prompt, Sampling(), tokens_max=prompt + output, yields=yields)
            self.wanted[sequence] = output
            self.scheduler.add(sequence)
            self.doomed += [sequence] if number in self.cancels else []

    def leave(self) -> None:
        if self.doomed and self.chance.random() < 0.2:
            sequence = self.doomed.pop()
            if not sequence.finished:
                self.scheduler.finish(sequence)
            self.wanted.pop(sequence, None)

    def lose(self) -> None:
        """Break the pipeline. Some of its stages come back empty, the others keep their content."""
        if self.chance.random() < 0.02:
            self.flights.clear()
            lost = [stage.index for stage in self.stages if self.chance.random() < 0.5]
            for index in lost:
                self.stages[index] = Stage(index, self.scheduler.kv_blocks, self.stages[index].disk)
            if self.scheduler.saved.is_on:
                self.look()
            self.scheduler.restart(self.scheduler.epoch + 1, lost)

    def look(self) -> None:
        """Tell the scheduler what all stages have on disk, as the first step of a pipeline does."""
        common = set.intersection(*(set(stage.disk) for stage in self.stages))
        self.scheduler.saved.learn(sorted(common))

    def forget(self) -> None:
        """Lose a saved block of one stage: its disk is full, or damaged."""
        stage = self.chance.choice(self.stages)
        if stage.disk and self.chance.random() < 0.02:
            del stage.disk[self.chance.choice(sorted(stage.disk))]

    def send(self) -> None:
        while work := self.scheduler.next_step():
            step, token_ids = work
            assert step.rows <= CHUNK_TOKENS + self.scheduler.slots
            if not step.replay or 0 in step.replay:
                assert step.rows == len(token_ids)
            self.flights.append((step, token_ids, 0))

    def advance(self) -> None:
        """Let one stage carry out one step, in order: no step overtakes another."""
        free = len(self.stages) + 1
        for at, (step, rows, passed) in enumerate(self.flights):
            if passed < free and passed < len(self.stages) and self.chance.random() < 0.7:
                self.flights[at] = (step, self.stages[passed].run(step, rows), passed + 1)
                if passed + 1 == len(self.stages):
                    self.answers[step.batch] = ([], []) if step.replay else self.stages[-1].sample(step)
            free = self.flights[at][2]

    def receive(self) -> None:
        if self.flights and self.flights[0][2] == len(self.stages):
            step, _, _ = self.flights.popleft()
            tokens, counts = self.answers.pop(step.batch)
            spent_ns = [1000 + 10 * step.rows] * len(self.stages)
            restored = [len(order.names) for order in step.restores]
            self.restored += sum(restored)
            answer = Sampled(step.epoch, step.batch, tokens, counts, spent_ns, restored)
            for sequence, token in self.scheduler.commit(answer, 1e-4):
                self.got[sequence].append(token.token_id)
                if len(self.got[sequence]) == self.wanted.get(sequence):
                    self.scheduler.finish(sequence)


@settings(max_examples=examples(30, 150), deadline=None)
@given(
    stages=st.integers(1, 4),
    slots=st.integers(1, 6),
    blocks=st.integers(8, 20),
    jobs=st.lists(st.tuples(st.integers(1, 400), st.integers(1, 90)), min_size=1, max_size=12),
    cancels=st.sets(st.integers(0, 11)),
    saves=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_every_sequence_gets_its_tokens_in_order(
    stages: int, slots: int, blocks: int, jobs: list[tuple[int, int]], cancels: set[int], saves: bool, seed: int
) -> None:
    scheduler = Scheduler(epoch=1, stages=stages, slots=slots, kv_blocks=blocks)
    run = Run(scheduler, jobs, cancels, Random(seed))
    if saves:
        run.look()
    for _ in range(30_000):
        run.arrive()
        run.leave()
        run.lose()
        run.forget()
        run.send()
        run.advance()
        run.receive()
        scheduler.check_integrity()
        if run.is_over:
            break
    assert run.is_over, "the scheduler does not come to an end"
    for sequence, output in run.wanted.items():
        expected = sequence.tokens[: sequence.prompt_tokens]
        for _ in range(output):
            expected.append(successor(expected))
        assert run.got[sequence] == expected[sequence.prompt_tokens :]
    assert scheduler.blocks_free == blocks


def test_saved_prefixes_come_back_with_the_same_tokens() -> None:
    """A pipeline that is lost again and again restores most prompts, block by block, from incomplete disks."""
    scheduler = Scheduler(epoch=1, stages=2, slots=2, kv_blocks=16)
    run = Run(scheduler, [(400, 5)] * 60, set(), Random(3))
    run.look()
    while not run.is_over:
        for turn in (run.arrive, run.lose, run.forget, run.send, run.advance, run.receive):
            turn()
        scheduler.check_integrity()
    for sequence, output in run.wanted.items():
        expected = sequence.tokens[: sequence.prompt_tokens]
        for _ in range(output):
            expected.append(successor(expected))
        assert sequence.tokens == expected
    assert run.restored > 30


def test_a_sequence_that_ends_before_a_lost_stage_was_fed_again_is_not_shared() -> None:
    """The stage that came back empty holds only a part of it: neither memory nor disk may offer the whole."""
    scheduler = Scheduler(epoch=1, stages=2, slots=2, kv_blocks=64)
    run = Run(scheduler, [], set(), Random(1))
    run.look()
    first, second = (Sequence([at % 4 for at in range(1000)], 1000, Sampling()) for _ in range(2))
    scheduler.add(first)
    while not first.output_tokens:
        for turn in (run.send, run.advance, run.receive):
            turn()
    run.flights.clear()
    run.stages[1] = Stage(1, scheduler.kv_blocks)
    scheduler.restart(2, [1])
    run.send()
    assert 0 < sum(step.rows for step, _, _ in run.flights) < first.settled
    scheduler.finish(first)
    assert not scheduler.saved.has_saves
    scheduler.add(second)
    run.wanted[second] = 3
    while not run.is_over:
        for turn in (run.send, run.advance, run.receive):
            turn()
    expected = second.tokens[:1000]
    for _ in range(3):
        expected.append(successor(expected))
    assert second.tokens == expected


@pytest.mark.parametrize("yields", [True, False])
def test_what_yields_is_neither_saved_nor_restored(yields: bool) -> None:
    scheduler = Scheduler(epoch=1, stages=1, slots=2, kv_blocks=64)
    sequence = Sequence(list(range(300)), 300, Sampling(), yields=yields)
    scheduler.saved.learn(scheduler.saved._names(sequence.block_hashes(256)))
    scheduler.add(sequence)
    step, _ = scheduler.next_step() or (None, None)
    assert step
    assert bool(step.restores) is not yields
    list(scheduler.commit(Sampled(1, step.batch, [], [], [1], [4] * len(step.restores))))
    scheduler.finish(sequence)
    assert scheduler.saved.has_saves is not yields


def test_an_answer_with_more_restored_blocks_than_asked_for_is_refused() -> None:
    scheduler = Scheduler(epoch=1, stages=1, slots=2, kv_blocks=64)
    sequence = Sequence(list(range(300)), 300, Sampling())
    scheduler.saved.learn(scheduler.saved._names(sequence.block_hashes(256)))
    scheduler.add(sequence)
    step, _ = scheduler.next_step() or (None, None)
    assert step
    assert [len(order.names) for order in step.restores] == [4]
    for restored in ([], [5], [-1], [4, 4]):
        with pytest.raises(FrameInvalid):
            scheduler.commit(Sampled(1, step.batch, [], [], [1], restored))
    list(scheduler.commit(Sampled(1, step.batch, [], [], [1], [4])))
    assert (sequence.computed, sequence.reused_tokens) == (256, 256)


def answer(scheduler: Scheduler, step: Step, spent_ns: int = 1000) -> None:
    """Answer the step as a pipeline does, with one token for each group that is sampled."""
    wanted = sum(map(bool, step.wanted))
    sampled = Sampled(1, step.batch, [SampledToken(9)] * wanted, [1] * wanted, [spent_ns] * scheduler.stages)
    assert len(list(scheduler.commit(sampled, spent_ns * scheduler.stages / 1e9))) == wanted


def test_micro_batches_share_the_decoding_sequences() -> None:
    """With two stages and eight sequences, two batches of four are in flight, not one of eight."""
    scheduler = Scheduler(epoch=1, stages=2, slots=8, kv_blocks=64)
    for _ in range(8):
        scheduler.add(Sequence([1, 2, 3], 3, Sampling()))
    prefill = scheduler.next_step()
    assert prefill
    answer(scheduler, prefill[0])
    sizes = [len(work[0].slots) for _ in range(2) if (work := scheduler.next_step())]
    assert sizes == [4, 4]
    assert scheduler.next_step() is None


def test_a_long_prompt_does_not_hold_up_decoding() -> None:
    """Beside a decoding sequence, chunks of a prompt make a step about twice as long; they are not 256 rows."""
    scheduler = Scheduler(epoch=1, stages=1, slots=2, kv_blocks=64)
    scheduler.add(Sequence(list(range(90)), 90, Sampling()))
    for _ in range(20):
        step, _ = scheduler.next_step() or (None, None)
        assert step
        answer(scheduler, step, spent_ns=1_000_000 + 10_000 * step.rows)
    scheduler.add(Sequence(list(range(1000)), 1000, Sampling()))
    step, _ = scheduler.next_step() or (None, None)
    assert step
    assert step.counts[0] == 1
    assert 80 <= step.counts[1] <= 120


def test_yielding_requests_leave_time_and_memory_to_others() -> None:
    """One small piece of a prompt is under way at a time, and the owner's earlier prompt stays cached."""
    scheduler = Scheduler(epoch=1, stages=2, slots=2, kv_blocks=64)
    prompt = list(range(100))
    owner = Sequence(prompt, 100, Sampling(), salt="owner")
    scheduler.add(owner)
    step, _ = scheduler.next_step() or (None, None)
    assert step
    answer(scheduler, step)
    scheduler.finish(owner)
    for number in range(4):
        job = Sequence([number] * 600, 600, Sampling(), salt=str(number), yields=True)
        scheduler.add(job)
        step, _ = scheduler.next_step() or (None, None)
        assert step
        assert step.rows <= 64
        assert scheduler.next_step() is None
        scheduler.finish(job)
        answer(scheduler, step)
        scheduler.check_integrity()
    scheduler.add(Sequence([*prompt, 7], 101, Sampling(), salt="owner"))
    step, _ = scheduler.next_step() or (None, None)
    assert step
    assert step.starts[0] >= 100 - BLOCK_TOKENS


@pytest.mark.parametrize(("preemptible_jobs", "tokens", "blocks"), [(3, 64, 400), (3, 410, 11)])
def test_preemptible_requests_in_all_slots_but_one_spare_the_latest_cache(
    preemptible_jobs: int, tokens: int, blocks: int
) -> None:
    """Four slots hold the caches of four requests. In the second case little memory is left beside the last."""
    scheduler = Scheduler(epoch=1, stages=2, slots=4, kv_blocks=blocks)
    prompts = [[number, *range(5, 200)] for number in range(4)]
    for prompt in prompts:
        owner = Sequence(list(prompt), len(prompt), Sampling(), salt="owner")
        scheduler.add(owner)
        carry_on(scheduler, owner)
        scheduler.finish(owner)
    visiting = [
        Sequence([n] * tokens, tokens, Sampling(), salt=str(n), yields=True) for n in range(preemptible_jobs)
    ]
    for job in visiting:
        scheduler.add(job)
    for job in visiting:
        carry_on(scheduler, job)
        scheduler.check_integrity()
        scheduler.finish(job)
    later = Sequence([*prompts[-1], 7], len(prompts[-1]) + 1, Sampling(), salt="owner")
    scheduler.add(later)
    carry_on(scheduler, later)
    assert later.reused_tokens == len(prompts[-1]) // BLOCK_TOKENS * BLOCK_TOKENS
    scheduler.check_integrity()


def carry_on(scheduler: Scheduler, until_begun: Sequence) -> None:
    for _ in range(1000):
        if until_begun.output_tokens > 0:
            return
        step, _ = scheduler.next_step() or (None, None)
        assert step
        answer(scheduler, step)
    raise AssertionError("it never begins")


def test_prompts_that_begin_alike_are_computed_once() -> None:
    """The second of two requests waits for the first one's blocks and copies them. A third one reuses them later.

    A request of another tenant finds no blocks, because its salt gives other hashes.
    """
    scheduler = Scheduler(epoch=1, stages=1, slots=4, kv_blocks=64)
    shared = list(range(200))
    sequences = [Sequence([*shared, 7, number], 202, Sampling(), salt="us") for number in range(3)]
    stranger = Sequence([*shared, 7, 8], 202, Sampling(), salt="them")
    for sequence in (sequences[0], sequences[1], stranger):
        scheduler.add(sequence)
    while any(sequence.output_tokens == 0 for sequence in (sequences[0], sequences[1], stranger)):
        step, _ = scheduler.next_step() or (None, None)
        assert step
        answer(scheduler, step)
    assert (sequences[1].reused_tokens, stranger.reused_tokens) == (3 * BLOCK_TOKENS, 0)
    scheduler.finish(sequences[1])
    scheduler.finish(sequences[0])
    scheduler.add(sequences[2])
    scheduler.next_step()
    assert sequences[2].reused_tokens == 3 * BLOCK_TOKENS


@pytest.mark.parametrize("agrees", [True, False])
def test_drafts_are_made_if_they_pay(agrees: bool) -> None:
    """A prompt repeats itself. If the answer does, too, drafts are long; otherwise they are rare."""
    scheduler = Scheduler(epoch=1, stages=2, slots=32, kv_blocks=64)
    scheduler.add(Sequence([1, 2, 3, 4] * 20, 80, Sampling(), tokens_max=4000))
    drafted = steps = 0
    for _ in range(100):
        step, _ = scheduler.next_step() or (None, None)
        assert step
        draft = step.drafts[0] if step.drafts else []
        drafted += len(draft)
        tokens = []
        if step.wanted[0]:
            steps += 1
            right = draft if agrees else []
            tokens = [SampledToken(token) for token in [*right, 1 + steps % 3]]
        spent_ns = [1_000_000 + 100_000 * step.rows] * 2
        counts = [len(tokens)] if tokens else []
        list(scheduler.commit(Sampled(1, step.batch, tokens, counts, spent_ns), sum(spent_ns) / 1e9))
    assert drafted > 100 if agrees else drafted < 50


def test_a_step_opens_no_more_slots_than_a_frame_holds() -> None:
    """Penalties need long histories, which travel with the step that opens their slots."""
    scheduler = Scheduler(epoch=1, stages=1, slots=8, kv_blocks=100_000)
    for _ in range(4):
        scheduler.add(Sequence(list(range(200_000)), 200_000, Sampling(frequency_penalty=0.5)))
    opened = 0
    while opened < 4:
        step, _ = scheduler.next_step() or (None, None)
        assert step
        assert len(encode(step)) < MESSAGE_BYTES_MAX
        opened += len(step.opened)
        answer(scheduler, step)

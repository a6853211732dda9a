"""Continuous batching: which rows of which sequences go into the next micro-batch. No I/O, no clock.

    waiting --admit--> running: prefill chunks, then decode with drafts --finish--> gone, its prefix retained
       ^                  |
       +---- preempt -----+     its tokens are kept, its KV cache is computed again

A sequence whose prefix the stages have on disk is restored before its first chunk.
Sequences join and leave between any two steps. The measured costs of steps decide how many micro-batches are in
flight, how long prefill chunks are and how many tokens are drafted.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from cluster.engine.costs import PipelineCosts
from cluster.engine.saved_prefixes import RestoreQuestion, SavedPrefixes
from cluster.engine.sequence import Sequence
from cluster.engine.slots import Slots, blocks_of
from cluster.errors import FrameInvalid
from cluster.generation import SampledToken
from cluster.models.stage_spec import CHUNK_TOKENS
from cluster.plans.plan import BLOCK_TOKENS
from cluster.wire import Sampled, Step

# A prefill chunk may stretch the decoding sequences' step by this factor.
_SLOWDOWN = 2.0
_CHUNK_LEAST = 32
# A new request waits for steps in flight, so cap how many low-priority prefill tokens they may contain.
_YIELDING_LEAST = 16
_YIELDING_MOST = 64
# While nothing decodes: smaller chunks would underuse the stages' kernels.
_ALONE_LEAST = 64


@dataclass(frozen=True, slots=True)
class Row:
    """One row group in flight. The last `wanted` rows are sampled; `drafts` are guesses among them."""

    sequence: Sequence
    generation: int
    start: int
    count: int
    wanted: int
    drafts: tuple[int, ...] = ()

    @property
    def real(self) -> int:
        return self.count - len(self.drafts)


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step under way. A replay rebuilds the KV cache and gives no tokens. A question has no rows."""

    rows: list[Row]
    is_replay: bool = False
    question: RestoreQuestion | None = None
    # Rows and pairs of the step, from which costs are learned.
    size: tuple[int, int] = (0, 0)

    def requested_counts(self) -> list[int]:
        return [row.wanted for row in self.rows if row.wanted]

    def asked_blocks(self) -> list[int]:
        return [len(self.question.order.names)] if self.question else []


@dataclass(slots=True)
class Scheduler:
    """The order of work of one pipeline, epoch after epoch while its partition stays."""

    epoch: int
    stages: int
    slots: int
    kv_blocks: int
    saved: SavedPrefixes = field(default_factory=SavedPrefixes)
    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)
    costs: PipelineCosts = field(init=False)
    _slots: Slots = field(init=False)
    _in_flight: dict[int, _Flight] = field(default_factory=dict)
    _batches: int = 0
    _arrivals: int = 0
    _is_reset: bool = False
    _fresh: list[int] = field(default_factory=list)
    _replays: deque[tuple[Sequence, int, int]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.costs = PipelineCosts(self.stages)
        self._slots = Slots(self.slots, self.kv_blocks)

    @property
    def blocks_free(self) -> int:
        """Return the number of blocks that no sequence needs."""
        return self._slots.blocks_free

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. If another pipeline began it, it keeps its tokens; its KV cache is computed again."""
        sequence.rewind()
        self._arrivals += 1
        sequence.arrival = self._arrivals
        self.waiting.append(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Free the sequence's slot and blocks now. Rows of it still in flight are ignored when they return."""
        sequence.finished = True
        if sequence.slot >= 0:
            self.running.remove(sequence)
            slot = sequence.slot
            # A stage that has still to be fed with a sequence holds less than was computed of it.
            is_fed = all(unfed is not sequence for unfed, _, _ in self._replays)
            if self._slots.release(sequence, retain=is_fed and not sequence.yields):
                self.saved.save(slot, sequence.block_hashes(sequence.computed))
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def restart(self, epoch: int, fresh: list[int]) -> None:
        """Continue with the same partition in a new pipeline, in which the stages `fresh` hold nothing.

        Steps in flight are void. If some stages still have their KV cache, only the fresh stages are fed again,
        with the rows that the stages before them stored. If no stage has it, all is computed again from tokens.
        """
        # A stage that was still being fed when this pipeline broke holds too little, too.
        self._fresh = sorted({*fresh, *(self._fresh if self._is_replaying else ())})
        self.epoch = epoch
        self._in_flight.clear()
        self._replays.clear()
        self.saved.take_saves()  # Their slots will be given up.
        self._is_reset = True
        is_all_fresh = len(self._fresh) == self.stages
        for sequence in self.running:
            sequence.generation += 1
            sequence.settled = 0 if is_all_fresh else sequence.settled
            sequence.computed = sequence.settled
            sequence.saved = 0
            if not sequence.computed:
                self.saved.seek(sequence)
            if self._fresh:
                self._replays.extend(
                    (sequence, start, min(CHUNK_TOKENS, sequence.computed - start))
                    for start in range(0, sequence.computed, CHUNK_TOKENS)
                )
        self._slots.restart(self.running)

    def next_step(self) -> tuple[Step, list[int]] | None:
        """Return the next micro-batch with its token ids, or None while there is nothing to send."""
        if len(self._in_flight) > self.stages and self._replays:
            return None
        if rows := self._next_replay():
            return self._step(_Flight(rows, is_replay=True))
        self._admit()
        decoding = [sequence for sequence in self.running if not sequence.is_prefilling]
        groups = self.costs.groups(len(decoding))
        # Prefill chunks wait for no answer: one more than there are stages keeps all of them busy. Chunks that
        # yield must not delay the next request.
        prefills = any(s.is_prefilling and s.pending and not s.yields for s in self.running)
        if len(self._in_flight) >= (max(groups, self.stages + 1) if prefills else groups):
            return None
        if question := self._question():
            return self._step(_Flight([], question=question))
        rows = self._choose(decoding, groups)
        if not (rows or self._slots.has_moves or self.saved.has_saves or self._is_reset):
            return None
        return self._step(_Flight(rows))

    @property
    def _is_replaying(self) -> bool:
        return bool(self._replays) or any(flight.is_replay for flight in self._in_flight.values())

    def census(self) -> Step | None:
        """In a quiet moment, return a step that makes every stage compare what it holds with the counts here."""
        if self._in_flight or self._is_reset:
            return None
        step, _ = self._step(_Flight([]))
        step.census = self._slots.loaded_stages(self.running)
        return step

    def commit(
        self, sampled: Sampled, round_trip_s: float = 0.0, *, learn: bool = True
    ) -> Iterator[tuple[Sequence, SampledToken]]:
        """Take a batch's answer. Yield each sequence with each of its tokens, in order.

        The caller finishes sequences while it iterates, so no tokens behind a sequence's end are yielded. Costs
        are learned from the answer unless `learn` is false; `round_trip_s` is in seconds. Raise FrameInvalid, at
        once, if the answer has the wrong number of rows or is not for the oldest batch under way. A step that a
        stage skips would leave a hole in its KV cache.
        """
        oldest = next(iter(self._in_flight), None)
        flight = self._in_flight[oldest] if oldest == sampled.batch else None
        requested = flight.requested_counts() if flight else []
        sound = flight and len(sampled.counts) == len(requested) and sum(sampled.counts) == len(sampled.tokens)
        asked = flight.asked_blocks() if flight else []
        sound = sound and len(asked) == len(sampled.restored)
        sound = sound and all(0 <= got <= most for got, most in zip(sampled.restored, asked, strict=True))
        if not flight or not sound or not all(map(_is_possible, sampled.counts, requested)):
            raise FrameInvalid(
                f"{len(sampled.tokens)} tokens for batch {sampled.batch}, which requested another number"
            )
        del self._in_flight[sampled.batch]
        if learn and flight.rows and not flight.is_replay:
            self.costs.observe(*flight.size, sampled.spent_ns, round_trip_s)
        if flight.question:
            self._begin_restored(flight.question, sampled.restored[0])
        return self._commit_rows(flight.rows, sampled)

    def check_integrity(self) -> None:
        """Assert that every block and slot is free, retained, or owned by exactly one running sequence."""
        self._slots.check_integrity(self.running)

    def _commit_rows(self, rows: list[Row], sampled: Sampled) -> Iterator[tuple[Sequence, SampledToken]]:
        tokens, counts = iter(sampled.tokens), iter(sampled.counts)
        spent_ns, total = sum(sampled.spent_ns), sum(row.count for row in rows)
        for row in rows:
            sequence = row.sequence
            fresh = [next(tokens) for _ in range(next(counts))] if row.wanted else []
            sequence.spent_ns += spent_ns * row.count // total
            if row.generation != sequence.generation:
                continue
            sequence.settled = max(sequence.settled, row.start + row.real)
            if row.drafts:
                sequence.drafter.observe(len(row.drafts), len(fresh) - 1)
            for at, token in enumerate(fresh):
                if sequence.finished:
                    break
                sequence.tokens.append(token.token_id)
                if at:  # The previous draft was right, so this row is computed already.
                    sequence.computed += 1
                    sequence.settled += 1
                yield sequence, token

    def _step(self, flight: _Flight) -> tuple[Step, list[int]]:
        self._batches += 1
        rows = flight.rows
        # The census of a reset already contains earlier moves.
        census = self._slots.loaded_stages(self.running) if self._is_reset else None
        step = Step(
            epoch=self.epoch,
            batch=self._batches,
            slots=[row.sequence.slot for row in rows],
            starts=[row.start for row in rows],
            counts=[row.count for row in rows],
            wanted=[row.wanted for row in rows],
            drafts=[list(row.drafts) for row in rows] if any(row.drafts for row in rows) else [],
            opened=self._slots.take_opened(),
            moves=self._slots.take_moves(),
            replay=self._fresh if flight.is_replay else [],
            census=census,
            is_reset=self._is_reset,
            spent_ns=[],
            saves=self.saved.take_saves(),
            restores=[flight.question.order] if flight.question else [],
        )
        self._is_reset = False
        self._in_flight[step.batch] = replace(flight, size=(step.rows, step.pairs))
        token_ids: list[int] = []
        if not flight.is_replay or 0 in self._fresh:
            for row in rows:
                token_ids += row.sequence.tokens[row.start : row.start + row.real]
                token_ids += row.drafts
        return step, token_ids

    def _next_replay(self) -> list[Row]:
        rows: list[Row] = []
        budget = CHUNK_TOKENS
        while self._replays and self._replays[0][2] <= budget:
            sequence, start, count = self._replays.popleft()
            if sequence.slot >= 0 and not sequence.finished:
                rows.append(Row(sequence, sequence.generation, start, count, wanted=0))
                budget -= count
        return rows

    def _choose(self, decoding: list[Sequence], groups: int) -> list[Row]:
        """Choose decoding sequences first, up to this micro-batch's share. Then fill the prefill budget."""
        late = self._slots.late()
        rows: list[Row] = []
        share = -(-len(decoding) // groups)
        for sequence in decoding:
            if len(rows) == share:
                break
            if sequence.pending and sequence.slot not in late and self._grant(sequence, 1, rows):
                rows.append(_take(sequence, 1))
                # A served sequence goes behind those that were not.
                self.running.remove(sequence)
                self.running.append(sequence)
        rows = [self._with_drafts(row, len(rows)) for row in rows]
        budget = self._prefill_budget(rows, decodes=bool(decoding))
        spare = min(budget, self._yielding_budget(rows))
        for sequence in [s for s in self.running if s.is_prefilling and not s.is_restoring]:
            count = min(spare if sequence.yields else budget, sequence.pending)
            if count > 0 and sequence.slot not in late and self._grant(sequence, count, rows):
                rows.append(_take(sequence, count))
                self._slots.note(sequence)
                budget -= count
                spare -= count
        return rows

    def _with_drafts(self, row: Row, company: int) -> Row:
        """Return the row with drafts behind it, as far as the step has room for sampled rows."""
        sequence = row.sequence
        most = min(self.slots // company - 1, sequence.tokens_max - len(sequence.tokens) - 1)
        if most < 1:
            return row
        drafts = sequence.drafter.propose(sequence.tokens, company, self.costs, most)
        # Drafts use only blocks that no sequence needs: no sequence gives way for a guess.
        if not drafts or not self._slots.extend(sequence, sequence.computed + len(drafts)):
            return row
        count = 1 + len(drafts)
        return Row(sequence, row.generation, row.start, count, count, tuple(drafts))

    def _prefill_budget(self, rows: list[Row], *, decodes: bool) -> int:
        if decodes:
            decoded = max(1, sum(row.count for row in rows))
            return self.costs.beside_rows(decoded, _SLOWDOWN, _CHUNK_LEAST, CHUNK_TOKENS)
        pending = sum(sequence.pending for sequence in self.running if sequence.is_prefilling)
        return self.costs.prefill_rows(pending, _ALONE_LEAST, CHUNK_TOKENS)

    def _yielding_budget(self, rows: list[Row]) -> int:
        """Return the prefill rows for sequences that yield.

        They may make a step about twice as long as usual, since a new request waits for it.
        """
        if not any(sequence.yields for sequence in self.running):
            return 0
        decoded = max(1, sum(row.count for row in rows))
        return self.costs.beside_rows(decoded, _SLOWDOWN, _YIELDING_LEAST, _YIELDING_MOST)

    def _admit(self) -> None:
        """Admit waiting sequences that fit, first come first served, except those that gain by waiting."""
        if not self.waiting:
            return
        coming = self._blocks_coming(self.running)
        for sequence in list(self.waiting):
            # Each running sequence keeps room for its next block, so that newcomers do not push out old ones.
            needed = blocks_of(len(sequence.tokens) + 1) + len(self.running)
            free = self._slots.blocks_not_newest if sequence.yields else self._slots.blocks_free
            if not self._slots.may_open or (self.running and needed > free):
                return
            source, shared = self._slots.match(sequence)
            if coming.intersection(sequence.block_hashes(len(sequence.tokens) - 1)[shared:]):
                continue  # Another sequence computes more of this prefix now: copying it later is cheaper.
            if not self._slots.place(sequence, source, shared):
                return
            self.waiting.remove(sequence)
            self.running.append(sequence)
            self.saved.seek(sequence)
            coming |= self._blocks_coming([sequence])

    def _question(self) -> RestoreQuestion | None:
        """Return what the stages are to restore next. It is one at a time, so that other steps come between."""
        if any(flight.question for flight in self._in_flight.values()):
            return None
        for sequence in self.running:
            if sequence.is_restoring:
                if self._slots.extend(sequence, sequence.saved):
                    return self.saved.question(sequence)
                sequence.saved = 0  # There is no room for all of it now: it is computed.
        return None

    def _begin_restored(self, question: RestoreQuestion, blocks: int) -> None:
        """Continue behind the blocks that every stage has restored. After an answer of 0 the rest is computed."""
        sequence = question.sequence
        if not blocks:
            self.saved.forget(question)
        if sequence.finished or sequence.generation != question.generation:
            return
        if blocks:
            self._slots.begin_at(sequence, question.order.first_block + blocks)
        else:
            sequence.saved = 0

    def _blocks_coming(self, sequences: list[Sequence]) -> set[bytes]:
        """Return the hashes of the prompt blocks that these sequences have still to compute."""
        coming: set[bytes] = set()
        for sequence in sequences:
            if sequence.is_prefilling:
                coming.update(sequence.block_hashes(len(sequence.tokens) - 1)[sequence.computed // BLOCK_TOKENS :])
        return coming

    def _grant(self, sequence: Sequence, count: int, rows: list[Row]) -> bool:
        """Grant blocks for `count` more rows. If none are free, take them from later arrivals outside this step.

        Only later arrivals give way, so the earliest always makes progress and two cannot push each other out in
        turn.
        """
        if sequence.slot < 0:  # This call has just preempted the sequence itself.
            return False
        # A lone sequence makes progress even if it yields, whatever retained blocks that costs.
        spares = sequence.yields and len(self.running) > 1
        while not self._slots.extend(sequence, sequence.computed + count, spares_newest=spares):
            busy = [sequence, *(row.sequence for row in rows)]
            later = [o for o in self.running if o.arrival > sequence.arrival and o.blocks and o not in busy]
            if not later:
                return False
            self._preempt(max(later, key=lambda other: other.arrival))
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._slots.release(sequence, retain=False)
        sequence.rewind()
        self.waiting.appendleft(sequence)


def _take(sequence: Sequence, count: int) -> Row:
    start = sequence.computed
    sequence.computed += count
    return Row(sequence, sequence.generation, start, count, wanted=int(sequence.pending == 0))


def _is_possible(got: int, wanted: int) -> bool:
    return 1 <= got <= wanted

"""Continuous batching: which rows of which sequences go into the next micro-batch. No I/O, no clock.

    waiting --admit--> running: prefill chunks, then one row a step --finish--> gone
       ^                  |
       +---- preempt -----+     its tokens are kept, its KV is computed anew

Sequences join and leave between any two steps. As many micro-batches are in flight as the pipeline has
stages, each with its share of the decoding sequences, so that every stage has work.
"""

from collections import deque
from dataclasses import dataclass, field

from cluster.errors import FrameInvalid
from cluster.generation import SampledToken, Sampling
from cluster.plan import BLOCK_TOKENS, CHUNK_TOKENS
from cluster.wire import OpenSlot, Step

# Histories and biases of all slots that one step opens come to so many numbers, or to one slot's: a step is a
# frame, and frames are bounded.
TOLD_MAX = 250_000


@dataclass(slots=True, eq=False)
class Sequence:
    """One continuation of one prompt. `tokens` are authoritative; everything on the stages can be redone."""

    tokens: list[int]
    prompt_tokens: int
    sampling: Sampling
    arrival: int = 0
    slot: int = -1
    computed: int = 0
    blocks: int = 0
    # Counts how often its KV was thrown away: answers from before the last time are void.
    generation: int = 0
    spent_ns: int = 0
    finished: bool = False

    @property
    def pending(self) -> int:
        """Rows that may be computed now: none while the next token is still under way."""
        return len(self.tokens) - self.computed

    @property
    def is_prefilling(self) -> bool:
        return self.pending > 1 or self.computed == 0

    @property
    def output_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens


@dataclass(frozen=True, slots=True)
class Row:
    """One row group of a batch in flight."""

    sequence: Sequence
    generation: int
    start: int
    count: int
    wanted: bool


@dataclass(slots=True)
class Scheduler:
    """Owns slots, KV blocks and the order of work of one ring in one epoch."""

    epoch: int
    stages: int
    slots: int
    kv_blocks: int
    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)
    _free_slots: list[int] = field(default_factory=list)
    _free_blocks: int = 0
    _in_flight: dict[int, list[Row]] = field(default_factory=dict)
    _batches: int = 0
    _arrivals: int = 0
    _opened: list[OpenSlot] = field(default_factory=list)
    _closed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._free_slots = list(range(self.slots - 1, -1, -1))
        self._free_blocks = self.kv_blocks

    @property
    def blocks_free(self) -> int:
        return self._free_blocks

    def add(self, sequence: Sequence) -> None:
        self._arrivals += 1
        sequence.arrival = self._arrivals
        self.waiting.append(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Free the sequence's slot and blocks now; rows of it still in flight are ignored when they return."""
        sequence.finished = True
        if sequence.slot >= 0:
            self.running.remove(sequence)
            self._release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def next_step(self) -> tuple[Step, list[int]] | None:
        """The next micro-batch with its token ids, or None while there is nothing to send."""
        if len(self._in_flight) >= self.stages:
            return None
        self._admit()
        rows = self._choose()
        if not rows and not self._closed:
            return None
        self._batches += 1
        step = Step(
            epoch=self.epoch,
            batch=self._batches,
            slots=[row.sequence.slot for row in rows],
            starts=[row.start for row in rows],
            counts=[row.count for row in rows],
            wanted=[row.wanted for row in rows],
            opened=self._opened,
            closed=self._closed,
            spent_ns=[],
        )
        self._opened, self._closed = [], []
        self._in_flight[step.batch] = rows
        token_ids = [token for row in rows for token in row.sequence.tokens[row.start : row.start + row.count]]
        return step, token_ids

    def commit(self, batch: int, tokens: list[SampledToken], spent_ns: int) -> list[tuple[Sequence, SampledToken]]:
        """Take a batch's answer; returns the sequences that got a token. The caller finishes those that end.

        Raises FrameInvalid when it answers no batch that is under way, or another number of rows.
        """
        rows = self._in_flight.get(batch)
        if rows is None or len(tokens) != sum(row.wanted for row in rows):
            raise FrameInvalid(f"{len(tokens)} tokens for batch {batch}, which did not ask for so many")
        del self._in_flight[batch]
        total = sum(row.count for row in rows)
        answers = iter(tokens)
        fresh = []
        for row in rows:
            row.sequence.spent_ns += spent_ns * row.count // total
            if not row.wanted:
                continue
            token = next(answers)
            if row.sequence.finished or row.generation != row.sequence.generation:
                continue
            row.sequence.tokens.append(token.token_id)
            fresh.append((row.sequence, token))
        return fresh

    def check_integrity(self) -> None:
        """Every block and slot is free or owned by exactly one running sequence."""
        owned_blocks = sum(sequence.blocks for sequence in self.running)
        owned_slots = {sequence.slot for sequence in self.running}
        assert self._free_blocks + owned_blocks == self.kv_blocks, "KV blocks leaked"
        assert len(owned_slots) == len(self.running), "two sequences share a slot"
        assert owned_slots.isdisjoint(self._free_slots), "a slot is both free and owned"
        assert len(owned_slots) + len(self._free_slots) == self.slots, "slots leaked"

    def _admit(self) -> None:
        told = sum(_told(opened) for opened in self._opened)
        while self.waiting and self._free_slots:
            sequence = self.waiting[0]
            # A running sequence each keeps room for its next block, so that newcomers do not push out old ones.
            if _blocks(len(sequence.tokens) + 1) + len(self.running) > self._free_blocks and self.running:
                return
            self.waiting.popleft()
            sequence.slot = self._free_slots.pop()
            self.running.append(sequence)
            history = sequence.tokens if sequence.sampling.needs_history else []
            opened = OpenSlot(sequence.slot, sequence.sampling, list(history), sequence.prompt_tokens)
            self._opened.append(opened)
            told += _told(opened)
            if told >= TOLD_MAX:
                return

    def _choose(self) -> list[Row]:
        """Decoding sequences first, up to this micro-batch's share; then prefill within the chunk budget."""
        rows: list[Row] = []
        decoding = [sequence for sequence in self.running if not sequence.is_prefilling]
        share = -(-len(decoding) // max(1, min(self.stages, len(decoding))))
        for sequence in decoding:
            if len(rows) == share:
                break
            if sequence.pending and self._grant(sequence, 1, rows):
                rows.append(_take(sequence, 1))
                # Who was served goes behind those who were not.
                self.running.remove(sequence)
                self.running.append(sequence)
        budget = CHUNK_TOKENS
        for sequence in [sequence for sequence in self.running if sequence.is_prefilling]:
            count = min(budget, sequence.pending)
            if count and self._grant(sequence, count, rows):
                rows.append(_take(sequence, count))
                budget -= count
        return rows

    def _grant(self, sequence: Sequence, count: int, rows: list[Row]) -> bool:
        """Blocks for `count` more rows, taken from later arrivals that are not in this step when none are free.

        Only later ones give way, so the earliest always gets on and two cannot push each other out in turn.
        """
        if sequence.slot < 0:  # It has just given way itself.
            return False
        needed = _blocks(sequence.computed + count) - sequence.blocks
        while needed > self._free_blocks:
            busy = [sequence, *(row.sequence for row in rows)]
            later = [o for o in self.running if o.arrival > sequence.arrival and o.blocks and o not in busy]
            if not later:
                return False
            self._preempt(max(later, key=lambda other: other.arrival))
        self._free_blocks -= needed
        sequence.blocks += needed
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        sequence.computed = 0
        sequence.generation += 1
        self.waiting.appendleft(sequence)

    def _release(self, sequence: Sequence) -> None:
        unheard = [opened for opened in self._opened if opened.slot == sequence.slot]
        if unheard:  # The stages have not been told of it yet: it never was there.
            self._opened.remove(unheard[0])
        else:
            self._closed.append(sequence.slot)
        self._free_slots.append(sequence.slot)
        self._free_blocks += sequence.blocks
        sequence.slot, sequence.blocks = -1, 0


def _take(sequence: Sequence, count: int) -> Row:
    start = sequence.computed
    sequence.computed += count
    return Row(sequence, sequence.generation, start, count, wanted=sequence.pending == 0)


def _told(opened: OpenSlot) -> int:
    """Numbers in the message that opens a slot."""
    return len(opened.history) + len(opened.sampling.logit_bias)


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)

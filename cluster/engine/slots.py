"""The owners of slots and blocks of the KV cache, and the orders about them to the stages, in order.

Every slot is free, run by a sequence, or retained: kept after its sequence for later prompts with the same prefix.
Stages carry out the same moves in the same order, so the counts here match what they hold.
"""

from collections import deque
from dataclasses import dataclass, field

from cluster.engine.prefixes import Prefixes
from cluster.engine.sequence import Sequence
from cluster.plans.plan import BLOCK_TOKENS
from cluster.wire import Move, OpenSlot

# The limit for the histories and biases of all slots that one step opens, in numbers. A single slot may exceed it.
# Steps are frames, and frames are bounded.
OPENING_SIZE_MAX = 250_000


@dataclass(slots=True)
class Slots:
    """The slots and blocks of one pipeline, as the coordinator counts them."""

    count: int
    blocks: int
    _prefixes: Prefixes = field(default_factory=Prefixes)
    _free: list[int] = field(default_factory=list)
    _free_blocks: int = 0
    _moves: list[Move] = field(default_factory=list)
    _opened: deque[OpenSlot] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._free = list(range(self.count - 1, -1, -1))
        self._free_blocks = self.blocks

    @property
    def blocks_free(self) -> int:
        """Return the number of blocks that are free or only retained."""
        return self._free_blocks + self._prefixes.retained_blocks

    @property
    def blocks_not_newest(self) -> int:
        """Return the same number without the blocks of the slot that was retained last."""
        return self.blocks_free - self._prefixes.retained.get(self._prefixes.newest, 0)

    @property
    def has_moves(self) -> bool:
        return bool(self._moves)

    @property
    def may_open(self) -> bool:
        """Tell whether one more slot can be opened without waiting for a step after the next one."""
        return sum(map(_opening_size, self._opened)) < OPENING_SIZE_MAX

    def match(self, sequence: Sequence) -> tuple[int, int]:
        """Return the slot with the longest prefix of this sequence and its number of blocks; (-1, 0) for none."""
        return self._prefixes.match(_reusable(sequence))

    def place(self, sequence: Sequence, source: int, shared: int) -> bool:
        """Give the sequence a slot, with its first `shared` blocks from `source`.

        Return False if there is no slot. The sequence takes over a retained slot that holds no more than it
        shares. Any other slot is copied if there is room. A sequence that yields does not take the slot that was
        retained last, unless there is no other slot.
        """
        spared = self._prefixes.newest if sequence.yields and self.count > 1 else -1
        if source in self._prefixes.retained and not self._can_copy(source, shared, spared):
            sequence.slot = source
            sequence.blocks = self._prefixes.take(source, shared)
            self.begin_at(sequence, shared)
        elif not self._free and not self._give_up_oldest(source, spared):
            return False
        else:
            sequence.slot = self._free.pop()
            if shared and self.make_room(shared, source, spared):
                self._free_blocks -= shared
                sequence.blocks = shared
                self._moves.append(Move(sequence.slot, source, shared * BLOCK_TOKENS))
                self.begin_at(sequence, shared)
        self.open(sequence)
        return True

    def open(self, sequence: Sequence) -> None:
        """Tell the last stage about the sequence, which it must know before it can sample."""
        history, prompt_tokens = [], 0
        if sequence.sampling.needs_history:
            history, prompt_tokens = list(sequence.tokens), sequence.prompt_tokens
        elif sequence.grammar:  # A grammar concerns only the output, not the prompt.
            history = sequence.tokens[sequence.prompt_tokens :]
        opened = OpenSlot(sequence.slot, sequence.sampling, history, prompt_tokens, sequence.grammar)
        self._opened.append(opened)

    def extend(self, sequence: Sequence, tokens: int, *, spares_newest: bool = False) -> bool:
        """Give the sequence blocks for its first `tokens` tokens. Return False if too few are free or retained.

        `spares_newest` excludes the slot that was retained last.
        """
        needed = blocks_of(tokens) - sequence.blocks
        if needed > 0:
            if not self.make_room(needed, self._prefixes.newest if spares_newest else -1):
                return False
            self._free_blocks -= needed
            sequence.blocks += needed
        return True

    def note(self, sequence: Sequence) -> None:
        """Share what the sequence has computed so far, from the next step on."""
        self._prefixes.note(sequence.slot, sequence.block_hashes(sequence.computed))

    def begin_at(self, sequence: Sequence, blocks: int) -> None:
        """Note that the sequence's slot holds its first blocks, which were not computed for it."""
        sequence.computed = blocks * BLOCK_TOKENS
        if not sequence.output_tokens:  # Tokens computed again after a loss were counted before.
            sequence.reused_tokens = sequence.computed
        self.note(sequence)

    def release(self, sequence: Sequence, *, retain: bool) -> bool:
        """Take the sequence out of its slot. Retain the slot for its prefix if that is worth it, and say so."""
        slot = sequence.slot
        is_unheard = any(opened.slot == slot for opened in self._opened)
        if is_unheard:
            self._opened = deque(opened for opened in self._opened if opened.slot != slot)
        elif retain:
            self.note(sequence)
        is_retained = not is_unheard and retain and self._prefixes.retain(slot, sequence.blocks)
        if not is_retained:
            self._prefixes.forget(slot)
            self._give_back(slot, sequence.blocks)
        sequence.slot, sequence.blocks = -1, 0
        return is_retained

    def make_room(self, blocks: int, *spared: int) -> bool:
        """Give up retained slots, oldest first, until `blocks` blocks are free."""
        while blocks > self._free_blocks and self._give_up_oldest(*spared):
            pass
        return blocks <= self._free_blocks

    def late(self) -> set[int]:
        """Return the slots that miss the next step because its frame has no room to open them."""
        return {opened.slot for opened in list(self._opened)[self._opened_next() :]}

    def take_opened(self) -> list[OpenSlot]:
        """Remove and return the slots that the next step opens."""
        return [self._opened.popleft() for _ in range(self._opened_next())]

    def take_moves(self) -> list[Move]:
        """Remove and return what the stages must do before the next step's rows."""
        moves, self._moves = self._moves, []
        return moves

    def restart(self, running: list[Sequence]) -> None:
        """Note that the stages have forgotten everything but what these sequences hold."""
        self._moves.clear()
        self._opened.clear()
        self._prefixes = Prefixes()
        owned = {sequence.slot for sequence in running}
        self._free = [slot for slot in range(self.count - 1, -1, -1) if slot not in owned]
        self._free_blocks = self.blocks - sum(sequence.blocks for sequence in running)
        for sequence in running:
            self.open(sequence)

    def loaded_stages(self, running: list[Sequence]) -> list[tuple[int, int]]:
        """Return (slot, blocks) for everything that the stages hold once they have carried out their orders."""
        return sorted([*((s.slot, s.blocks) for s in running), *self._prefixes.retained.items()])

    def check_integrity(self, running: list[Sequence]) -> None:
        """Assert that every block and slot is free, retained, or owned by exactly one running sequence."""
        owned_blocks = sum(sequence.blocks for sequence in running)
        owned, retained = {sequence.slot for sequence in running}, set(self._prefixes.retained)
        assert self.blocks_free + owned_blocks == self.blocks, "KV blocks leaked"
        assert len(owned) == len(running), "two sequences share a slot"
        assert owned.isdisjoint(retained), "a slot is both retained and run"
        assert (owned | retained).isdisjoint(self._free), "a slot is both free and owned"
        assert len(owned) + len(retained) + len(self._free) == self.count, "slots leaked"

    def _can_copy(self, source: int, shared: int, spared: int) -> bool:
        """Tell whether the retained `source` holds more than is shared, and there is room for a copy beside it."""
        has_slot = self._free or self._prefixes.oldest(source, spared) is not None
        room = self.blocks_free - self._prefixes.retained[source]
        return bool(has_slot) and shared <= room and not self._prefixes.holds_no_more_than(source, shared)

    def _give_up_oldest(self, *spared: int) -> bool:
        slot = self._prefixes.oldest(*spared)
        if slot is None:
            return False
        self._give_back(slot, self._prefixes.forget(slot))
        return True

    def _give_back(self, slot: int, blocks: int) -> None:
        self._moves.append(Move(slot))
        self._free.append(slot)
        self._free_blocks += blocks

    def _opened_next(self) -> int:
        size = 0
        for at, opened in enumerate(self._opened):
            size += _opening_size(opened)
            if at and size > OPENING_SIZE_MAX:
                return at
        return len(self._opened)


def blocks_of(tokens: int) -> int:
    """Return the number of blocks that this many tokens take."""
    return -(-tokens // BLOCK_TOKENS)


def _reusable(sequence: Sequence) -> list[bytes]:
    """Return the hashes of the blocks that another slot can share. The last token is computed in any case."""
    return sequence.block_hashes(len(sequence.tokens) - 1)


def _opening_size(opened: OpenSlot) -> int:
    """Return the size of the message that opens a slot, in numbers; four letters count as one."""
    return len(opened.history) + len(opened.sampling.logit_bias) + len(opened.grammar) // 4

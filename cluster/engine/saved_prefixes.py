"""The prefixes that the stages have on disk, as the coordinator knows them, and its orders about them. No I/O.

What a slot holds at its end is saved. A new sequence is restored as far as every stage can: the order passes through
all stages, and each one shortens it to what it has restored. The rest is computed. So a stage may lose blocks at any
time, and a wrong entry here costs one step.
"""

import hashlib
from dataclasses import dataclass, field

from cluster.engine.sequence import Sequence
from cluster.models.stage_spec import CHUNK_TOKENS
from cluster.plans.plan import BLOCK_TOKENS
from cluster.wire import SAVED_NAME_BYTES, Restore, Save

_KNOWN_MAX = 131_072
# Steps are frames, and frames are bounded: what ends when this many orders wait is not saved.
_SAVES_MAX = 32
# Restoring takes a step of its own: it must spare at least a prefill chunk, which is a step, too.
_RESTORED_LEAST = CHUNK_TOKENS


@dataclass(frozen=True, slots=True)
class RestoreQuestion:
    """An order to restore blocks of a sequence, which is computed only after the answer."""

    sequence: Sequence
    generation: int
    order: Restore


@dataclass(slots=True)
class SavedPrefixes:
    """The names of blocks that every stage should have. `is_on` if every stage saves blocks.

    A name covers all tokens up to its block's end, and the salt: requests that share no slot share no name. Stages
    and disks see names only. Only the holder of `key` can test which prompt a name belongs to.
    """

    key: bytes = b""
    is_on: bool = False
    _known: dict[bytes, None] = field(default_factory=dict)
    _saves: list[Save] = field(default_factory=list)

    @property
    def has_saves(self) -> bool:
        return bool(self._saves)

    def learn(self, held: list[bytes] | None) -> None:
        """Take over what the stages of a new pipeline hold, newest first; None if one of them saves nothing."""
        self.is_on = held is not None
        self._known = dict.fromkeys(reversed(held or []))

    def save(self, slot: int, hashes: list[bytes]) -> None:
        """Have the stages save the blocks of a retained slot, which have these hashes."""
        if self.is_on and len(self._saves) < _SAVES_MAX:
            names = self._names(hashes)
            self._saves.append(Save(slot, names))
            for name in names:
                self._known.pop(name, None)
                self._known[name] = None
            while len(self._known) > _KNOWN_MAX:
                del self._known[next(iter(self._known))]

    def take_saves(self) -> list[Save]:
        """Remove and return the orders for the next step."""
        saves, self._saves = self._saves, []
        return saves

    def seek(self, sequence: Sequence) -> None:
        """Note how much of a sequence behind its computed blocks the stages may have, if that is worth a step.

        What yields is not saved, and its reading would delay other requests.
        """
        sequence.saved = 0
        if self.is_on and not sequence.yields:
            # The last token is computed in any case.
            names = self._names(sequence.block_hashes(len(sequence.tokens) - 1)[_computed_blocks(sequence) :])
            found = next((at for at, name in enumerate(names) if name not in self._known), len(names))
            if found * BLOCK_TOKENS >= _RESTORED_LEAST:
                sequence.saved = sequence.computed + found * BLOCK_TOKENS

    def question(self, sequence: Sequence) -> RestoreQuestion:
        """Return the order to restore what the stages may have of this sequence."""
        first = _computed_blocks(sequence)
        names = self._names(sequence.block_hashes(sequence.saved)[first:])
        return RestoreQuestion(sequence, sequence.generation, Restore(sequence.slot, first, len(names), names))

    def forget(self, question: RestoreQuestion) -> None:
        """Note that the stages could not restore the question's first block."""
        self._known.pop(question.order.names[0], None)

    def _names(self, hashes: list[bytes]) -> list[bytes]:
        return [hashlib.blake2b(at, key=self.key, digest_size=SAVED_NAME_BYTES).digest() for at in hashes]


def _computed_blocks(sequence: Sequence) -> int:
    return sequence.computed // BLOCK_TOKENS

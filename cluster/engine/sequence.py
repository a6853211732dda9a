"""One continuation of one prompt, as the scheduler keeps it."""

import hashlib
from array import array
from dataclasses import dataclass, field

from cluster.engine.speculation import Drafter
from cluster.generation import Sampling
from cluster.plans.plan import BLOCK_TOKENS


@dataclass(slots=True, eq=False)
class Sequence:
    """`tokens` are authoritative; everything on the stages can be redone from them.

    `computed` positions have been sent round the ring, `settled` ones have come back. `tokens_max` is where the
    sequence ends at the latest; 0 means unknown, and then nothing is drafted. One that `yields` is here only while
    nobody else is.
    """

    tokens: list[int]
    prompt_tokens: int
    sampling: Sampling
    tokens_max: int = 0
    salt: str = ""
    # What the output keeps to, for llguidance.
    grammar: str = ""
    yields: bool = False
    arrival: int = 0
    slot: int = -1
    computed: int = 0
    settled: int = 0
    blocks: int = 0
    # Counts how often its KV was thrown away: answers from before the last time are void.
    generation: int = 0
    spent_ns: int = 0
    reused_tokens: int = 0
    finished: bool = False
    drafter: Drafter = field(default_factory=Drafter)
    _hashes: list[bytes] = field(default_factory=list)

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

    def rewind(self) -> None:
        """Nothing of it is on any stage any more."""
        self.slot, self.blocks, self.computed, self.settled = -1, 0, 0, 0
        self.generation += 1

    def block_hashes(self, tokens: int) -> list[bytes]:
        """A hash for each whole block of the first `tokens` tokens: of its tokens and all before, salted."""
        while len(self._hashes) < tokens // BLOCK_TOKENS:
            at = len(self._hashes) * BLOCK_TOKENS
            block = array("i", self.tokens[at : at + BLOCK_TOKENS]).tobytes()
            before = self._hashes[-1] if self._hashes else self.salt.encode()
            self._hashes.append(hashlib.blake2b(len(before).to_bytes(4) + before + block, digest_size=16).digest())
        return self._hashes[: tokens // BLOCK_TOKENS]

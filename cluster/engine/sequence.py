"""One continuation of one prompt, as the scheduler stores it."""

import hashlib
from array import array
from dataclasses import dataclass, field

from cluster.engine.speculation import Drafter
from cluster.generation import Sampling
from cluster.plans.plan import BLOCK_TOKENS


@dataclass(slots=True, eq=False)
class Sequence:
    """The state of one continuation. `tokens` is authoritative; the stages can recompute everything else from it.

    `computed` positions have been sent through the pipeline, `settled` ones have come back. `tokens_max` is the
    greatest length that the sequence can reach; 0 means unknown, and then nothing is drafted. A sequence that
    `yields` runs only while no other request needs the pipeline. The stages may have its first `saved` tokens on disk
    and are asked for them before anything is computed.
    """

    tokens: list[int]
    prompt_tokens: int
    sampling: Sampling
    tokens_max: int = 0
    salt: str = ""
    # The llguidance grammar that the output must follow.
    grammar: str = ""
    yields: bool = False
    arrival: int = 0
    slot: int = -1
    computed: int = 0
    settled: int = 0
    saved: int = 0
    blocks: int = 0
    # The number of times that its KV cache was thrown away: answers from before the last time are void.
    generation: int = 0
    spent_ns: int = 0
    reused_tokens: int = 0
    finished: bool = False
    drafter: Drafter = field(default_factory=Drafter)
    _hashes: list[bytes] = field(default_factory=list)

    @property
    def pending(self) -> int:
        """Return the number of rows that may be computed now: none while the next token is under way."""
        return len(self.tokens) - self.computed

    @property
    def is_prefilling(self) -> bool:
        return self.pending > 1 or self.computed == 0

    @property
    def is_restoring(self) -> bool:
        """Tell whether the stages are to read more of it from disk."""
        return self.saved > self.computed

    @property
    def output_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    def rewind(self) -> None:
        """Note that no stage holds anything of this sequence."""
        self.slot, self.blocks, self.computed, self.settled, self.saved = -1, 0, 0, 0, 0
        self.generation += 1

    def block_hashes(self, tokens: int) -> list[bytes]:
        """Return a salted hash for each whole block of the first `tokens` tokens.

        It covers all tokens up to its end.
        """
        while len(self._hashes) < tokens // BLOCK_TOKENS:
            at = len(self._hashes) * BLOCK_TOKENS
            block = array("i", self.tokens[at : at + BLOCK_TOKENS]).tobytes()
            before = self._hashes[-1] if self._hashes else self.salt.encode()
            self._hashes.append(hashlib.blake2b(len(before).to_bytes(4) + before + block, digest_size=16).digest())
        return self._hashes[: tokens // BLOCK_TOKENS]

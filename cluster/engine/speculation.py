"""Prompt-lookup drafts: the tokens that followed last time, verified by the model in one pass.

The last stage draws a token for each drafted position. It uses the logits, seed and position that the token would
have had anyway. Accepted drafts therefore change nothing in the output, greedy or sampled; they only save round
trips through the pipeline. The number of drafted tokens follows from this request's own acceptance and the
pipeline's measured costs. The method is that of prompt lookup decoding (Saxena, 2023).
"""

from dataclasses import dataclass, field

from cluster.engine.costs import PipelineCosts

DRAFT_MAX = 16
# Longer matches first: they are right more often.
_LENGTHS = (4, 3, 2)
_WORTH = 1.05
_PAUSE_MAX = 64
_INDEXED_MAX = 8192
# After this many trials, an earlier result counts half as much.
_MEMORY_TRIALS = 32.0


@dataclass(slots=True)
class Drafter:
    """One sequence's drafts. `propose` reads its tokens, `observe` learns how its drafts fared."""

    # By run of tokens: the position behind its last occurrence.
    _positions: dict[tuple[int, ...], int] = field(default_factory=dict)
    _indexed: int = 0
    _accepted: float = 1.0
    _trials: float = 2.0
    _pause: int = 1
    _skipped: int = 0

    @property
    def acceptance(self) -> float:
        """Return the share of right tokens among the drafted tokens that were tried."""
        return self._accepted / self._trials

    def propose(self, tokens: list[int], rows: int, costs: PipelineCosts, tokens_max: int) -> list[int]:
        """Return up to `tokens_max` tokens that may follow; none if none are known or drafts would not pay.

        `rows` sequences are in the same step and draft alike.
        """
        if tokens_max < 1 or not costs.is_known:
            return []
        self._index(tokens)
        position = next((self._positions[run] for run in _suffixes(tokens) if run in self._positions), None)
        if position is None:
            return []
        count = self._count(rows, costs, min(tokens_max, DRAFT_MAX))
        return _continue_from(tokens, position, count)

    def observe(self, drafted: int, accepted: int) -> None:
        """Learn that the first `accepted` of `drafted` tokens were right.

        Those behind the first wrong one were not tried.
        """
        tried = accepted + (accepted < drafted)
        fade = 0.5 ** (tried / _MEMORY_TRIALS)
        self._accepted = self._accepted * fade + accepted
        self._trials = self._trials * fade + tried

    def _count(self, rows: int, costs: PipelineCosts, most: int) -> int:
        """Return the number of drafts with the most tokens per second. While none pays, try a few now and then."""
        plain_s = costs.step_s(rows)
        best, best_gain = 0, _WORTH
        expected, chance = 1.0, 1.0
        for count in range(1, most + 1):
            chance *= self.acceptance
            expected += chance
            gain = expected * plain_s / max(1e-9, costs.step_s(rows * (1 + count)))
            if gain > best_gain:
                best, best_gain = count, gain
        if best:
            self._skipped, self._pause = 0, 1
            return best
        self._skipped += 1
        if self._skipped < self._pause:
            return 0
        self._skipped, self._pause = 0, min(_PAUSE_MAX, 2 * self._pause)
        return min(2, most)

    def _index(self, tokens: list[int]) -> None:
        """Index the runs that end before the last token; the run at the end is the one that is looked up."""
        # Index only the end of a long prompt: indexing all of it at once would delay every request.
        begin = max(self._indexed + 1, len(tokens) - _INDEXED_MAX)
        for end in range(begin, len(tokens)):
            for length in _LENGTHS:
                if end >= length:
                    self._positions[tuple(tokens[end - length : end])] = end
        self._indexed = max(self._indexed, len(tokens) - 1)


def _suffixes(tokens: list[int]) -> list[tuple[int, ...]]:
    return [tuple(tokens[-length:]) for length in _LENGTHS if len(tokens) >= length]


def _continue_from(tokens: list[int], position: int, count: int) -> list[int]:
    """Return `count` tokens from `position` on. Past the end the draft continues itself, as repetitions do."""
    drafted: list[int] = []
    for at in range(position, position + count):
        drafted.append(tokens[at] if at < len(tokens) else drafted[at - len(tokens)])
    return drafted

"""When failings are too many to be chance: a game against the claim that a seller is honest. Pure.

An honest seller fails a check of a kind with at most its tolerated rate m. Start with a stake of 1, and with each
audit x (1 failed, 0 passed) multiply it by 1 + f * (x / m - 1): that game is fair or worse for whoever bets
against an honest seller, so that a stake begun at any audit reaches 1/a with probability a at most (Ville's
inequality; Shafer and Vovk, Game-Theoretic Foundations). A stake that has fallen below 1 begins anew, so that a
long honest past excuses nothing. Of n audits each may begin one, hence:

    P(the stake of an honest seller ever reaches 1/a within n audits) <= n * a

With half of 10,000 requests being audits, the most there can be, that is 0.05 % for a = 1e-7.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["canary", "logprob", "needle", "redundancy"]

FAILING_MAX: dict[Kind, float] = {"canary": 0.005, "logprob": 0.005, "needle": 0.01, "redundancy": 0.01}
"""How often an honest seller fails at most, m: what canaries are frozen for, with room to spare."""
ALPHA = 1e-7
FRACTIONS = (0.02, 0.06, 0.15, 0.4)
"""What part f of the stake is put on each audit: little finds rare cheating, much finds plain cheating soon."""


@dataclass(frozen=True, slots=True)
class Stakes:
    """A stake for each of `FRACTIONS`, and how many audits there were."""

    each: tuple[float, ...] = tuple(1.0 for _ in FRACTIONS)
    audits: int = 0

    @property
    def total(self) -> float:
        """The mean of them: as much evidence as any single one, whose bound it keeps."""
        return sum(self.each) / len(self.each)

    @property
    def is_proof(self) -> bool:
        return self.total >= 1 / ALPHA

    @property
    def honest_probability_max(self) -> float:
        """The bound on how probably an honest seller would have come as far as `is_proof` by now."""
        return min(1.0, self.audits * ALPHA)

    def after(self, kind: Kind, *, has_failed: bool) -> "Stakes":
        """The stakes after one more audit."""
        odds = has_failed / FAILING_MAX[kind] - 1
        grown = tuple(stake * (1 + fraction * odds) for fraction, stake in zip(FRACTIONS, self.each, strict=True))
        is_over = sum(grown) < len(grown)
        return Stakes(tuple(1.0 for _ in FRACTIONS) if is_over else grown, self.audits + 1)

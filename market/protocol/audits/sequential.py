"""Decide when failures are too many to be chance: a bet against the claim that a seller is honest. Pure.

An honest seller fails a check of a kind with at most its tolerated rate m. Start with a stake of 1. At each audit
x (1 failed, 0 passed), multiply the stake by 1 + f * (x / m - 1). Against an honest seller this bet is fair or
worse. So a stake started at any audit reaches 1/a with a probability of at most a (Ville's inequality; Shafer and
Vovk, Game-Theoretic Foundations). A stake below 1 starts again at 1, so a long honest past excuses nothing. Each
of n audits may start one, hence:

    P(the stake of an honest seller ever reaches 1/a within n audits) <= n * a

If half of 10,000 requests are audits, the maximum, that is 0.05 % for a = 1e-7.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["canary", "redundancy"]

FAILING_MAX: dict[Kind, float] = {"canary": 0.005, "redundancy": 0.01}
"""The highest failure rate of an honest seller, m. Canaries are frozen for it, with a margin."""
ALPHA = 1e-7
FRACTIONS = (0.02, 0.06, 0.15, 0.4)
"""The part f of the stake for each audit: small ones find rare cheating, large ones find plain cheating soon."""


@dataclass(frozen=True, slots=True)
class Stakes:
    """A stake for each of `FRACTIONS`, and the number of audits."""

    each: tuple[float, ...] = tuple(1.0 for _ in FRACTIONS)
    audits: int = 0

    @property
    def total(self) -> float:
        """The mean of the stakes, as a factor of the first stake.

        It is as strong evidence as a single stake and keeps its bound.
        """
        return sum(self.each) / len(self.each)

    @property
    def is_proof(self) -> bool:
        return self.total >= 1 / ALPHA

    @property
    def honest_probability_max(self) -> float:
        """The upper bound on the probability that an honest seller reaches `is_proof` by now."""
        return min(1.0, self.audits * ALPHA)

    def after(self, kind: Kind, *, has_failed: bool) -> "Stakes":
        """Return the stakes after one more audit."""
        odds = has_failed / FAILING_MAX[kind] - 1
        grown = tuple(stake * (1 + fraction * odds) for fraction, stake in zip(FRACTIONS, self.each, strict=True))
        is_over = sum(grown) < len(grown)
        return Stakes(tuple(1.0 for _ in FRACTIONS) if is_over else grown, self.audits + 1)

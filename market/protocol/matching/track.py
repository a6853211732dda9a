"""Keep a seller's track record, and bound its quality from below, given how little may be known."""

from dataclasses import dataclass
from math import sqrt

HALF_LIFE_S = 3 * 86_400.0
"""After this time an outcome counts half, because sellers change."""
_Z = 1.28
"""Nine times out of ten a seller is at least as good as its lower bound."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of good and bad outcomes, where older ones count less. `at_s` is the time of the counts."""

    good: float = 0.0
    bad: float = 0.0
    at_s: float = 0.0

    def after(self, now_s: float, *, is_good: bool) -> "Tally":
        """Return the tally with one more outcome."""
        kept = 0.5 ** (max(0.0, now_s - self.at_s) / HALF_LIFE_S)
        return Tally(self.good * kept + is_good, self.bad * kept + (not is_good), max(now_s, self.at_s))

    @property
    def rate(self) -> float:
        """The probability of success: the mean of a Beta distribution that began with one of each."""
        return (self.good + 1) / (self.good + self.bad + 2)

    @property
    def lower_bound(self) -> float:
        """The lowest likely probability of success, nine times out of ten.

        It is Wilson's bound, which is close to the Beta distribution's. It grows with the number of outcomes. A
        new seller has a low one, however well it began.
        """
        n, rate = self.good + self.bad + 2, self.rate
        centre = rate + _Z**2 / (2 * n)
        spread = _Z * sqrt(rate * (1 - rate) / n + _Z**2 / (4 * n**2))
        return max(0.0, (centre - spread) / (1 + _Z**2 / n))


NOTHING_KNOWN = Tally()


@dataclass(frozen=True, slots=True)
class Track:
    """Requests answered or failed (429s and timeouts are failures), and audits passed or failed."""

    served: Tally = NOTHING_KNOWN
    audits: Tally = NOTHING_KNOWN

    @property
    def quality(self) -> float:
        """From 0 to 1. Many answers without an audit do not make it high, nor do audits without answers."""
        return self.served.lower_bound * self.audits.lower_bound

"""What a seller has done so far, and how good it is at least, given that little may be known."""

from dataclasses import dataclass
from math import sqrt

HALF_LIFE_S = 3 * 86_400.0
"""After so long what was seen counts half: sellers change."""
_Z = 1.28
"""Nine times of ten a seller is at least as good as its lower bound says."""


@dataclass(frozen=True, slots=True)
class Tally:
    """How often it went well and how often not, the old counting less; `at_s` is when that was true."""

    good: float = 0.0
    bad: float = 0.0
    at_s: float = 0.0

    def after(self, now_s: float, *, is_good: bool) -> "Tally":
        """The tally with one more outcome."""
        kept = 0.5 ** (max(0.0, now_s - self.at_s) / HALF_LIFE_S)
        return Tally(self.good * kept + is_good, self.bad * kept + (not is_good), max(now_s, self.at_s))

    @property
    def rate(self) -> float:
        """The probability that it goes well: the mean of a Beta distribution that began with one of each."""
        return (self.good + 1) / (self.good + self.bad + 2)

    @property
    def lower_bound(self) -> float:
        """What the rate is at least, nine times of ten: Wilson's bound, which is near the Beta distribution's.

        It grows with what is known. A newcomer has a low one, however well it began.
        """
        n, rate = self.good + self.bad + 2, self.rate
        centre = rate + _Z**2 / (2 * n)
        spread = _Z * sqrt(rate * (1 - rate) / n + _Z**2 / (4 * n**2))
        return max(0.0, (centre - spread) / (1 + _Z**2 / n))


NOTHING_KNOWN = Tally()


@dataclass(frozen=True, slots=True)
class Track:
    """Requests answered or not (429s and timeouts are not), and audits passed or failed."""

    served: Tally = NOTHING_KNOWN
    audits: Tally = NOTHING_KNOWN

    @property
    def quality(self) -> float:
        """From 0 to 1: neither many answers without an audit nor audits without answers make it high."""
        return self.served.lower_bound * self.audits.lower_bound

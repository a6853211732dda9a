"""Learn how many concurrent requests a seller really takes from its 429s, up to its stated maximum."""

from dataclasses import dataclass

_DECREASE = 0.7


@dataclass(frozen=True, slots=True)
class LearnedCap:
    """A cap. It rises by one after about as many successes as it allows, and falls by a third at a refusal."""

    slots: int
    cap: float

    @staticmethod
    def of(slots: int) -> "LearnedCap":
        return LearnedCap(slots, float(slots))

    def after_answer(self, in_flight: int) -> "LearnedCap":
        """Return the cap after an answer with `in_flight` requests, this one included.

        Only near the cap does it change.
        """
        if in_flight < self.cap - 1:
            return self
        return LearnedCap(self.slots, min(float(self.slots), self.cap + 1 / self.cap))

    def after_refusal(self, in_flight: int) -> "LearnedCap":
        """Return the cap after a 429 with `in_flight` requests, this one included."""
        return LearnedCap(self.slots, max(1.0, min(self.cap, in_flight) * _DECREASE))

    def headroom(self, in_flight: int) -> float:
        """Return the free share, from 0 to 1."""
        return max(0.0, 1 - in_flight / self.cap)

"""How many requests at once a seller really takes: learned from its 429s, never more than it says."""

from dataclasses import dataclass

_DECREASE = 0.7


@dataclass(frozen=True, slots=True)
class LearnedCap:
    """Rises by one each time that about as many requests as it allows went well, falls by a third at a refusal."""

    slots: int
    cap: float

    @staticmethod
    def of(slots: int) -> "LearnedCap":
        return LearnedCap(slots, float(slots))

    def after_answer(self, in_flight: int) -> "LearnedCap":
        """It answered while so many were there, this one included. Only near the cap does that teach anything."""
        if in_flight < self.cap - 1:
            return self
        return LearnedCap(self.slots, min(float(self.slots), self.cap + 1 / self.cap))

    def after_refusal(self, in_flight: int) -> "LearnedCap":
        """It refused with 429 while so many were there, this one included."""
        return LearnedCap(self.slots, max(1.0, min(self.cap, in_flight) * _DECREASE))

    def headroom(self, in_flight: int) -> float:
        """The share that is free, from 0 to 1."""
        return max(0.0, 1 - in_flight / self.cap)

"""Activity in equal time slots, of which the last are kept; and percentiles of histograms."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, zip_longest


@dataclass(slots=True)
class Slot:
    """A time slot: `number` counts slots since the epoch.

    `tokens` are those generated in this slot, and `busy_s` the total seconds of own machines' work for them.
    `spreads` are counts of a histogram's buckets, by its name and lane. `waiting` and `in_flight` are maximum
    values.
    """

    number: int
    tokens: dict[str, float] = field(default_factory=dict)
    busy_s: dict[str, float] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    failed: int = 0
    waiting: int = 0
    in_flight: int = 0
    spreads: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)

    def add(self, other: "Slot") -> None:
        """Add another slot's counts to this one."""
        for lane, tokens in other.tokens.items():
            self.tokens[lane] = self.tokens.get(lane, 0.0) + tokens
        for lane, busy_s in other.busy_s.items():
            self.busy_s[lane] = self.busy_s.get(lane, 0.0) + busy_s
        for lane, requests in other.requests.items():
            self.requests[lane] = self.requests.get(lane, 0) + requests
        for name, counts in other.spreads.items():
            self.spreads[name] = added(self.spreads.get(name, ()), counts)
        self.failed += other.failed
        self.waiting = max(self.waiting, other.waiting)
        self.in_flight = max(self.in_flight, other.in_flight)


class RingBuffer:
    """A ring buffer of the last `size` slots of `step_s` seconds each; slots without activity take no memory."""

    def __init__(self, step_s: int, size: int) -> None:
        self.step_s = step_s
        self.size = size
        self._slots: list[Slot | None] = [None] * size

    @property
    def span_s(self) -> int:
        return self.step_s * self.size

    def at(self, number: int, newest: int) -> Slot | None:
        """Return the slot to add to; None if it is no longer kept or has not begun."""
        if not newest - self.size < number <= newest:
            return None
        slot = self._slots[number % self.size]
        if slot is None or slot.number != number:
            slot = self._slots[number % self.size] = Slot(number)
        return slot

    def number_of(self, time_s: float) -> int:
        return int(time_s // self.step_s)

    def last(self, count: int, now_s: float) -> list[Slot]:
        """Return completed slots, oldest first; at most all except the current one."""
        newest = self.number_of(now_s)
        return [self._kept(number) for number in range(newest - min(count, self.size - 1), newest)]

    def _kept(self, number: int) -> Slot:
        slot = self._slots[number % self.size]
        return slot if slot is not None and slot.number == number else Slot(number)


def summed(slots: Iterable[Slot]) -> Slot:
    """Return the sum of slots as one slot."""
    total = Slot(0)
    for slot in slots:
        total.add(slot)
    return total


def added(counts: Sequence[int], more: Sequence[int]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(counts, more, fillvalue=0)))


def of_all_lanes(spreads: Mapping[tuple[str, str], tuple[int, ...]], name: str) -> tuple[int, ...]:
    """Return a histogram's buckets, summed over the lanes."""
    counts: tuple[int, ...] = ()
    for (found, _), more in spreads.items():
        if found == name:
            counts = added(counts, more)
    return counts


def spread_over(begin_s: float, end_s: float, step_s: int) -> Iterator[tuple[int, float]]:
    """Yield each slot with the share of a period that falls into it. A single moment falls into one slot."""
    first, last = int(begin_s // step_s), int(end_s // step_s)
    if last <= first:
        yield last, 1.0
        return
    length_s = end_s - begin_s
    for number in range(first, last + 1):
        part_s = min(end_s, (number + 1) * step_s) - max(begin_s, number * step_s)
        if part_s > 0:
            yield number, part_s / length_s


def percentile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """Return the value that `share` of the observations do not exceed, by buckets; None without observations.

    It is in the unit of `bounds`. Observations are assumed to be evenly spread inside a bucket. Beyond the last
    bound the result is that bound.
    """
    total = sum(counts)
    if not total:
        return None
    rank = share * total
    below = 0
    for index, reached in enumerate(accumulate(counts)):
        if reached >= rank and reached > below:
            if index >= len(bounds):
                return float(bounds[-1])
            least = bounds[index - 1] if index else 0.0
            return least + (bounds[index] - least) * (rank - below) / (reached - below)
        below = reached
    return float(bounds[-1])

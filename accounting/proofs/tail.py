"""Events that are in no block: a few young ones are as it should be; many or old ones are not.

Blocks are made about a second behind the writer, so old events without one mean that nobody makes blocks, or that
somebody took them away. Of what no block covers the books themselves still say a little: each event keeps the
hash of what was asked for.
"""

from collections.abc import Iterator, Mapping

from accounting.proofs.reading import Entry
from accounting.proofs.suspects import is_as_asked
from accounting.proofs.verdict import Flaw

UNPROVEN_MAX_S = 3600.0
"""How old an event without a block may be where no gateway may be running, in seconds."""
YOUNG_S = 10.0
"""So long a busy maker of blocks may take, in seconds."""
EVENTS_MAX = 10_000
"""The most events beyond `YOUNG_S` that may wait; so many are compared with their request hash, too."""

_SHOWN_MAX = 20


class Tail:
    """What was read behind the last block, as of `now_ns`; `codes` are the accounts' as JSON strings."""

    def __init__(self, codes: Mapping[int, str], now_ns: int) -> None:
        self._codes = codes
        self._now_ns = now_ns
        self._suspects: list[int] = []
        self._late = 0
        self._age_ns: int | None = None
        self.events = 0

    @property
    def age_s(self) -> float | None:
        """The age of the oldest event in seconds, None where there is none."""
        return None if self._age_ns is None else self._age_ns / 1e9

    def add(self, entry: Entry) -> None:
        """Take the next event."""
        event = entry[0]
        # A time to come is no younger than one gone by: a clock was set back, or somebody made it up.
        age_ns = abs(self._now_ns - event[5])
        self.events += 1
        self._late += age_ns > YOUNG_S * 1e9
        self._age_ns = max(age_ns, self._age_ns or 0)
        is_looked_at = self.events <= EVENTS_MAX and len(self._suspects) < _SHOWN_MAX
        if is_looked_at and not is_as_asked(entry, self._codes):
            self._suspects.append(int(event[0]))

    def flaws(self, unproven_max_s: float) -> Iterator[Flaw]:
        """All that is wrong with it, where an event may wait so long for its block."""
        for event_seq in self._suspects:
            yield Flaw(f"event {event_seq}", "is not what was asked for under its key")
        age_s = self.age_s or 0.0
        if age_s > unproven_max_s or self._late > EVENTS_MAX:
            yield Flaw(
                "tail",
                f"{self.events} events are in no block, the oldest for {age_s:.0f} s: no gateway makes blocks, or "
                "they were taken away",
            )

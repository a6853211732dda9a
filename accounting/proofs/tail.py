"""Judge the events that are in no block: a few young ones are normal; many or old ones are not.

Blocks follow the writer by about a second. Old events without one mean that no gateway makes blocks, or that
blocks were removed.
"""

from collections.abc import Iterator

from accounting.proofs.entries import Entry
from accounting.proofs.verdict import Flaw

UNPROVEN_MAX_S = 3600.0
"""Maximum age of an event without a block, in seconds, if it is possible that no gateway runs."""
YOUNG_S = 10.0
"""The longest time that a busy maker of blocks takes, in seconds."""
EVENTS_MAX = 10_000
"""The most events older than `YOUNG_S` that may wait."""
FIRST_BLOCK_S = 60.0
"""Maximum age of an ended request without any block, in seconds: its gateway should have made one."""


class Tail:
    """The events read after the last block, as of `now_ns`."""

    def __init__(self, now_ns: int) -> None:
        self._now_ns = now_ns
        self._late = 0
        self._request_ns = 0
        self._age_ns: int | None = None
        self.events = 0

    @property
    def age_s(self) -> float | None:
        """The age of the oldest event in seconds; None if there is none."""
        return None if self._age_ns is None else self._age_ns / 1e9

    def add(self, entry: Entry) -> None:
        """Add the next event."""
        event, _, usages = entry
        # A future time counts as old: a clock was set back, or the time is forged.
        age_ns = abs(self._now_ns - event[5])
        self.events += 1
        self._late += age_ns > YOUNG_S * 1e9
        self._age_ns = max(age_ns, self._age_ns or 0)
        if usages:
            self._request_ns = max(age_ns, self._request_ns)

    def flaws(self, unproven_max_s: float, *, is_all: bool = False) -> Iterator[Flaw]:
        """Yield what is wrong if an event may wait `unproven_max_s` for its block.

        `is_all` means there is no block.
        """
        if is_all and self._request_ns > FIRST_BLOCK_S * 1e9:
            yield Flaw("tail", "requests were answered, but there is no block at all: blocks were removed")
            return
        age_s = self.age_s or 0.0
        if age_s > unproven_max_s or self._late > EVENTS_MAX:
            yield Flaw(
                "tail",
                f"{self.events} events are in no block, the oldest for {age_s:.0f} s: no gateway makes blocks, or "
                "they were removed",
            )

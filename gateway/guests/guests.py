"""The guests of this gateway: who is being answered, who may come in, and that all leave when the owner comes.

Guests are requests that came over the market. They have what the owner's machines have to spare, by a key of their
own (gateway.guests.key), and are in none of the counts that the owner's requests are weighed by.
"""

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from gateway.errors import GuestsNotNow, KeyInvalid
from gateway.guests.admission import SENTENCES, OwnWork, Places, choose
from gateway.guests.agent import AgentWord
from gateway.identity.caller import Caller
from gateway.lanes.base import Offer


@dataclass(slots=True, eq=False)
class Stay:
    """One guest under way: its task, and the places it has at a backend."""

    task: "asyncio.Task[None]"
    label: str
    places: int
    is_over: bool = False
    """The owner has come."""

    def end(self) -> None:
        """Stop it, once: its task is told by a cancellation."""
        if not self.is_over:
            self.is_over = True
            self.task.cancel()


@dataclass(slots=True)
class Guests:
    """One event loop owns it. `stays` is empty nearly always, and all that own requests look at.

    `own_work` says what the owner has under way; a backend that does not say how many slots it has takes
    `slots_unknown` guests. What a backend says of its work is at most `told_s` old.
    """

    own_work: Callable[[], OwnWork]
    slots_unknown: int
    told_s: float = 0.0
    stays: set[Stay] = field(default_factory=set)
    agent: AgentWord | None = None
    """None as long as none has asked since the start."""
    is_paused: bool = False
    """An operator wants none for now; those who are here may stay to their end."""
    left_s: float = -math.inf
    """When the last one left, by the monotonic clock."""
    key_lock: threading.Lock = field(default_factory=threading.Lock)
    _peaks: dict[str, tuple[int, float]] = field(default_factory=dict)
    _key_id: str | None = None
    _is_closed: bool = False

    def use_key(self, key_id: str) -> None:
        """From now on guests come with this key alone; those of another one may stay to their end."""
        self._key_id = key_id

    def check_key(self, caller: Caller) -> None:
        """Raises KeyInvalid for the guest key of an earlier start, or of another gateway of the same database."""
        if caller.key_id != self._key_id:
            raise KeyInvalid(
                "This guest key was made by another start of the gateway, or by another one; "
                "POST /admin/guest-key makes one for this."
            )

    @property
    def taken(self) -> Counter[str]:
        """Places that guests have, by backend."""
        taken: Counter[str] = Counter()
        for stay in self.stays:
            taken[stay.label] += stay.places
        return taken

    @property
    def places(self) -> Places:
        """What guests have and had where."""
        taken, now_s = self.taken, time.monotonic()
        peaks = {label: most for label, (most, until_s) in self._peaks.items() if until_s > now_s}
        lately = {label: max(taken[label], peaks.get(label, 0)) for label in (*taken, *peaks)}
        return Places(taken, lately, self.slots_unknown)

    def place_for(self, offers: Sequence[Offer], places: int) -> Offer:
        """Where a guest may be answered. Raises GuestsNotNow."""
        if self._is_closed:
            raise GuestsNotNow("No guests any more: the gateway stops.")
        found = "paused" if self.is_paused else choose(offers, places, self.places, self.own_work())
        if isinstance(found, str):
            raise GuestsNotNow(f"No guests just now: {SENTENCES[found]}.")
        return found

    @contextmanager
    def staying(self, offer: Offer, places: int) -> Generator[Stay]:
        """The running task is a guest within the block; between `place_for` and this nothing may be awaited."""
        task = asyncio.current_task()
        assert task
        stay = Stay(task, offer.label, places)
        self.stays.add(stay)
        try:
            yield stay
        finally:
            self._leave(stay)

    def _leave(self, stay: Stay) -> None:
        now_s, most = time.monotonic(), self.taken[stay.label]
        kept = self._peaks.get(stay.label)
        if kept is None or kept[0] <= most or kept[1] <= now_s:
            self._peaks = {label: peak for label, peak in self._peaks.items() if peak[1] > now_s}
            self._peaks[stay.label] = most, now_s + self.told_s
        self.stays.discard(stay)
        self.left_s = now_s

    async def make_way(self) -> None:
        """Every guest is stopped at once. Returns when their backends have been told.

        Cancelled tasks run before whoever waits for the loop's next turn does: a backend's connection is cut, or
        its cancellation sent, without anything in between that could suspend. What guests have still to hear, and
        what is written down of them, waits until the owner's request is on its way.
        """
        for stay in self.stays:
            stay.end()
        await asyncio.sleep(0)

    @property
    def is_closed(self) -> bool:
        """Whether this gateway ends: who waits for news gets none any more."""
        return self._is_closed

    def close(self) -> None:
        """The gateway stops: nobody waits for guests, and no more come in."""
        self._is_closed = True
        for stay in self.stays:
            stay.end()

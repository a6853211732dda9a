"""The preemptible requests of this gateway: running ones, admission, and preemption when the owner's work arrives.

Preemptible requests are requests from the market. They get the spare capacity of the owner's machines, with a key
of their own (gateway.lanes.preemptible.key). They count in none of the figures that the owner's requests are judged by.
"""

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from gateway.errors import PreemptibleNotNow
from gateway.identity.caller import Caller
from gateway.lanes.base import Offer
from gateway.lanes.preemptible.admission import SENTENCES, OwnWork, Places, choose
from gateway.lanes.preemptible.agent import AgentWord
from runtime.errors import KeyInvalid


@dataclass(slots=True, eq=False)
class RunningJob:
    """One running preemptible request: its task, and its slots at a backend."""

    task: "asyncio.Task[None]"
    label: str
    places: int
    is_over: bool = False
    """True if it was preempted by the owner's work."""

    def end(self) -> None:
        """Cancel the preemptible request's task, once."""
        if not self.is_over:
            self.is_over = True
            self.task.cancel()


@dataclass(slots=True)
class PreemptibleJobs:
    """All preemptible requests. One event loop owns it. `stays` is nearly always empty, and all that own requests
    check.

    `own_work` returns the owner's current work. A backend that does not state its slots takes `slots_unknown`
    preemptible requests. Backends' own figures are at most `told_s` old.
    """

    own_work: Callable[[], OwnWork]
    slots_unknown: int
    told_s: float = 0.0
    stays: set[RunningJob] = field(default_factory=set)
    agent: AgentWord | None = None
    """None if the agent has not asked since the start."""
    is_paused: bool = False
    """True if an admin has paused selling; running preemptible requests may finish."""
    left_s: float = -math.inf
    """When the last preemptible request left, on the monotonic clock."""
    key_lock: threading.Lock = field(default_factory=threading.Lock)
    _peaks: dict[str, tuple[int, float]] = field(default_factory=dict)
    _key_id: str | None = None
    _is_closed: bool = False

    def use_key(self, key_id: str) -> None:
        """Accept only this key for new preemptible requests from now on; running preemptible requests may finish."""
        self._key_id = key_id

    def check_key(self, caller: Caller) -> None:
        """Raises KeyInvalid for a preemptible key of an earlier start, or of another gateway on the same database."""
        if caller.key_id != self._key_id:
            raise KeyInvalid(
                "This preemptible key belongs to an earlier start, or to another gateway. "
                "Get a new one with POST /admin/preemptible-key."
            )

    @property
    def taken(self) -> Counter[str]:
        """Return the slots that preemptible requests hold, by backend."""
        taken: Counter[str] = Counter()
        for stay in self.stays:
            taken[stay.label] += stay.places
        return taken

    @property
    def places(self) -> Places:
        """Return the slots that preemptible requests hold and held, by backend."""
        taken, now_s = self.taken, time.monotonic()
        peaks = {label: most for label, (most, until_s) in self._peaks.items() if until_s > now_s}
        lately = {label: max(taken[label], peaks.get(label, 0)) for label in (*taken, *peaks)}
        return Places(taken, lately, self.slots_unknown)

    def place_for(self, offers: Sequence[Offer], places: int) -> Offer:
        """Return the place that may serve a preemptible request. Raises PreemptibleNotNow."""
        if self._is_closed:
            raise PreemptibleNotNow("The gateway is shutting down and accepts no preemptible requests.")
        found = "paused" if self.is_paused else choose(offers, places, self.places, self.own_work())
        if isinstance(found, str):
            raise PreemptibleNotNow(f"No preemptible requests are accepted now: {SENTENCES[found]}.")
        return found

    @contextmanager
    def staying(self, offer: Offer, places: int) -> Generator[RunningJob]:
        """Register the running task as a preemptible request within the block; do not await between `place_for`
        and this.
        """
        task = asyncio.current_task()
        assert task
        stay = RunningJob(task, offer.label, places)
        self.stays.add(stay)
        try:
            yield stay
        finally:
            self._leave(stay)

    def _leave(self, stay: RunningJob) -> None:
        now_s, most = time.monotonic(), self.taken[stay.label]
        kept = self._peaks.get(stay.label)
        if kept is None or kept[0] <= most or kept[1] <= now_s:
            self._peaks = {label: peak for label, peak in self._peaks.items() if peak[1] > now_s}
            self._peaks[stay.label] = most, now_s + self.told_s
        self.stays.discard(stay)
        self.left_s = now_s

    async def make_way(self) -> None:
        """Stop every preemptible request immediately. Return when their backends have been notified.

        Cancelled tasks run before this coroutine's next turn on the loop. They close a backend's connection, or
        send its cancellation, without any await in between. The preemptible requests' remaining output and usage
        rows wait until the local request has been sent.
        """
        for stay in self.stays:
            stay.end()
        await asyncio.sleep(0)

    @property
    def is_closed(self) -> bool:
        """Return whether the gateway is shutting down; waits for news then end immediately."""
        return self._is_closed

    def close(self) -> None:
        """Stop all preemptible requests and admit no more, because the gateway shuts down."""
        self._is_closed = True
        for stay in self.stays:
            stay.end()

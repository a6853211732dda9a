"""This gateway's idle state, for the selling agent: the state itself, and waiting until it changes.

Own requests do not report their start and end. Waiters poll a few times a second instead, which keeps the hot path
free of this.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from accounting.metering.tokenizers import Pinned
from gateway.lanes.base import Lanes
from gateway.lanes.preemptible.admission import OWN
from gateway.lanes.preemptible.jobs import PreemptibleJobs
from gateway.lanes.preemptible.sensors import gpu_percent, is_on_battery
from gateway.lanes.preemptible.spare import SpareModel, spare_models
from gateway.limits.admission import Admission

LOOK_EVERY_S = 0.25
# Maximum age of the system's figures, because asking takes a process.
SENSED_S = 5.0
# A card's load is a mean over up to a second.
SETTLES_S = 2.0
_STEP_PERCENT = 10.0


@dataclass(frozen=True, slots=True)
class Idle:
    """`queue_empty_s` is how long there has been no own work; 0 while there is any.

    `gpu_percent` is the cards' load when there were last no preemptible requests. `version` changes whenever
    anything but the clock changes, or own work has come and gone.
    """

    version: int
    queue_empty_s: float
    own_in_flight: int
    own_batches: int
    preemptible_jobs: int
    gpu_percent: float | None
    is_on_battery: bool | None
    models: tuple[SpareModel, ...]
    is_paused: bool = False


@dataclass(slots=True)
class IdleWatch:
    """The idle state over time. One event loop owns it."""

    jobs: PreemptibleJobs
    admission: Admission
    lanes: Lanes
    pinned: Callable[[str], Pinned | None]
    # Versions of an earlier start must not repeat.
    _version: int = field(default_factory=lambda: time.time_ns() // 10**6)
    _last: tuple[Idle, float] | None = None
    _sensed: tuple[float | None, bool | None] = (None, None)
    _sensed_until_s: float = 0.0
    _busy_s: float = 0.0

    async def state(self) -> Idle:
        """Return the current state."""
        await self._sense()
        return self._look()

    async def after(self, version: int, wait_s: float) -> Idle:
        """Return the first state of another version, or the current one when the wait ends."""
        until_s = time.monotonic() + wait_s
        while True:
            found, left_s = await self.state(), until_s - time.monotonic()
            if found.version != version or left_s <= 0 or self.jobs.is_closed:
                return found
            await asyncio.sleep(min(left_s, LOOK_EVERY_S))

    def _look(self) -> Idle:
        now_s, work = time.monotonic(), self.jobs.own_work()
        if not work.is_none:
            self._busy_s = now_s
        empty_since_s = max(self.admission.empty_since_s, self._busy_s)
        card_percent, is_low = self._sensed
        found = Idle(
            version=self._version,
            queue_empty_s=round(now_s - empty_since_s, 3) if work.is_none else 0.0,
            own_in_flight=work.requests,
            own_batches=work.batches,
            preemptible_jobs=len(self.jobs.stays),
            gpu_percent=card_percent,
            is_on_battery=is_low,
            models=self._models(),
            is_paused=self.jobs.is_paused,
        )
        # Work that came and went between two looks counts, too.
        lasting = _lasting(found), empty_since_s if work.is_none else 0.0
        if lasting != self._last:
            self._version += 1
        self._last = lasting
        return replace(found, version=self._version)

    def _models(self) -> tuple[SpareModel, ...]:
        lanes = [lane for name, lane in self.lanes.items() if name in OWN]
        offers = [offer for lane in lanes for name in lane.models() for offer in lane.offers(name)]
        return spare_models(offers, self.jobs.places, self.pinned)

    async def _sense(self) -> None:
        if time.monotonic() >= self._sensed_until_s:
            self._sensed_until_s = time.monotonic() + SENSED_S
            began_s = time.monotonic()
            card_percent, is_low = await asyncio.to_thread(lambda: (gpu_percent(), is_on_battery()))
            if self.jobs.stays or self.jobs.left_s > began_s - SETTLES_S:
                # The load would include the preemptible requests' work.
                card_percent = self._sensed[0]
            self._sensed = card_percent, is_low


def _lasting(idle: Idle) -> Idle:
    """Return the values that count as a change.

    They exclude the number of own requests beyond the first, and small changes of load.
    """
    is_busy = idle.own_in_flight > 0
    tens = None if idle.gpu_percent is None else float(round(idle.gpu_percent / _STEP_PERCENT))
    return replace(idle, version=0, queue_empty_s=0.0, gpu_percent=tens, own_in_flight=int(is_busy))

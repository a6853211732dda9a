"""A machine as the cluster sees it: memory, device, measured pace and present condition. Data only."""

import bisect

from msgspec import Struct

POINTS_MAX = 16
"""Points of one speed that a machine may report."""

TEXT_CHARACTERS_MAX = 200
"""Characters of each text in a machine's description of itself."""


class Condition(Struct, frozen=True, kw_only=True):
    """The condition of a machine. None means that this system does not report the value."""

    on_battery: bool | None = None
    on_wifi: bool | None = None
    is_throttled: bool | None = None
    temperature_c: float | None = None


class Speed(Struct, frozen=True):
    """Seconds per million weights for steps of these numbers of rows, in one precision; or why it is unusable."""

    rows: tuple[int, ...] = ()
    seconds: tuple[float, ...] = ()
    is_usable: bool = True
    reason: str = ""

    def per_million(self, rows: float) -> float:
        """Return seconds per million weights, on a line between the points and beyond the last one."""
        if rows <= self.rows[0] or len(self.rows) == 1:
            return self.seconds[0] * max(1.0, rows / self.rows[-1] if len(self.rows) == 1 else 1.0)
        right = min(bisect.bisect_left(self.rows, rows), len(self.rows) - 1)
        left = right - 1
        slope = (self.seconds[right] - self.seconds[left]) / (self.rows[right] - self.rows[left])
        return max(self.seconds[left] + slope * (rows - self.rows[left]), self.seconds[0] / 4)


class Pace(Struct, frozen=True, kw_only=True):
    """A machine's computing speed. Zeros and missing precisions have not been measured."""

    speeds: dict[str, Speed] = {}
    # The cost of each layer of a step before any arithmetic: calls, small kernels, waking threads.
    dispatch_s: float = 0.0
    memory_bytes_per_s: float = 0.0


class Device(Struct, frozen=True):
    """The device that computes a stage: "cpu", "cuda" or "mps"."""

    kind: str
    name: str
    memory_bytes: int


class Machine(Struct, frozen=True, kw_only=True):
    """A node's own account of its machine. `memory_usable_bytes` already leaves the system its share.

    `pace` is empty until the machine has measured itself.
    """

    system: str
    architecture: str
    cores: int
    memory_total_bytes: int
    memory_usable_bytes: int
    device: Device
    pace: Pace = Pace()
    condition: Condition = Condition()

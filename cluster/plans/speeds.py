"""A machine's computing speed: seconds for a layer, measured if possible, otherwise assumed.

The cost of a step of b rows in one layer is c(b) = dispatch + weights * s(b) + b * context * kv / bandwidth. Here
s(b) are seconds per million weights: flat while reading the weights takes longest, then a line. A few
measured points of s, per precision, therefore predict any model.
"""

import math
from collections.abc import Mapping

from cluster.machine import POINTS_MAX, Pace, Speed
from cluster.models.model_card import PRECISIONS, Precision

# The assumed speed of a machine that has not measured itself: one core of a server of 2019, and small GPUs.
_ROWS = (1, 16, 256)
_ASSUMED_MS: Mapping[str, Mapping[Precision, tuple[float, float, float]]] = {
    "cpu": {
        "fp32": (0.40, 1.75, 9.3),
        "bf16": (0.30, 1.95, 23.0),
        "fp16": (0.30, 1.95, 23.0),
        "int8": (0.14, 0.19, 1.5),
        "int4": (0.14, 0.90, 14.0),
    },
    "mps": {
        "fp32": (0.040, 0.045, 0.20),
        "bf16": (0.020, 0.025, 0.10),
        "fp16": (0.020, 0.025, 0.10),
        "int8": (0.012, 0.025, 0.12),
        "int4": (0.008, 0.025, 0.12),
    },
    "cuda": {
        "fp32": (0.010, 0.011, 0.03),
        "bf16": (0.005, 0.006, 0.01),
        "fp16": (0.005, 0.006, 0.01),
        "int8": (0.004, 0.006, 0.01),
        "int4": (0.003, 0.006, 0.01),
    },
}
_ASSUMED_DISPATCH_S = 0.00015
_ASSUMED_MEMORY = {"cpu": 10e9, "mps": 100e9, "cuda": 400e9}
_SECONDS_MIN, _SECONDS_MAX = 1e-9, 100.0


def speed_of(pace: Pace, kind: str, precision: Precision) -> Speed:
    """Return the measured speed, or the assumed one of a device of this kind."""
    measured = pace.speeds.get(precision)
    if measured and is_plausible(measured):
        return measured
    milliseconds = _ASSUMED_MS.get(kind, _ASSUMED_MS["cpu"])[precision]
    return Speed(_ROWS, tuple(ms / 1000 for ms in milliseconds))


def is_measured(pace: Pace, precision: Precision) -> bool:
    """Tell whether this machine has timed its kernels in this precision."""
    measured = pace.speeds.get(precision)
    return measured is not None and is_plausible(measured)


def why_not(pace: Pace, precision: Precision) -> str:
    """Return why this machine cannot use the precision; "" if it can, or if it has not measured itself."""
    if not pace.speeds:
        return ""
    speed = pace.speeds.get(precision)
    if speed is None:
        return f"it has no kernels for {precision}"
    return "" if speed.is_usable else speed.reason or f"its {precision} kernels failed their self-test"


def is_plausible(speed: Speed) -> bool:
    """Tell whether a peer's figures can be used for plans."""
    return (
        0 < len(speed.rows) == len(speed.seconds) <= POINTS_MAX
        and all(a < b for a, b in zip(speed.rows, speed.rows[1:], strict=False))
        and speed.rows[0] >= 1
        and all(math.isfinite(s) and _SECONDS_MIN <= s <= _SECONDS_MAX for s in speed.seconds)
    )


def dispatch_s(pace: Pace) -> float:
    """Return the cost of a layer before any arithmetic, in seconds: measured or assumed."""
    return pace.dispatch_s if 0 < pace.dispatch_s < 1 else _ASSUMED_DISPATCH_S


def memory_bytes_per_s(pace: Pace, kind: str) -> float:
    """Return the rate at which attention reads the KV cache, in bytes per second: measured or assumed."""
    if 1e6 < pace.memory_bytes_per_s < 1e14:
        return pace.memory_bytes_per_s
    return _ASSUMED_MEMORY.get(kind, _ASSUMED_MEMORY["cpu"])


assert all(set(table) == set(PRECISIONS) for table in _ASSUMED_MS.values())

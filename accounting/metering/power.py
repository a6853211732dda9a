"""Measure how many watts this machine draws: processors by RAPL counters, NVIDIA cards through NVML.

Both need no special tools. The counters are files of Linux, which many systems show only to root. NVML is read
through nvidia-smi, which comes with the driver. Neither covers memory, disks, fans or the power supply's losses.
This machine does not measure the cluster's other machines: their owner declares their watts.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from runtime.children import output_of

POWERCAP = Path("/sys/class/powercap")
_SMI_QUERY = ("--query-gpu=power.draw", "--format=csv,noheader,nounits")
_CARDS_MAX = 64


@dataclass(frozen=True, slots=True)
class Zone:
    """A counter of energy in microjoules, which restarts at zero after `range_uj`."""

    path: Path
    range_uj: int


@dataclass(frozen=True, slots=True)
class Energy:
    """The counters' values at a moment, in seconds of a clock that does not jump."""

    at_s: float
    counted_uj: Mapping[Path, int]


def find_zones(root: Path = POWERCAP) -> tuple[Zone, ...]:
    """Return the readable counters: that of the whole platform if it exists, else those of each processor.

    Zones within zones (a processor's cores, its memory) are part of them, and `-mmio` repeats the same counters.
    """
    zones: list[Zone] = []
    platform: list[Zone] = []
    for folder in sorted(root.glob("*:*")):
        if folder.name.count(":") != 1 or "-mmio" in folder.name:
            continue
        path = folder / "energy_uj"
        range_uj, name = _number(folder / "max_energy_range_uj"), _text(folder / "name")
        if range_uj and _number(path) is not None:
            (platform if name == "psys" else zones).append(Zone(path, range_uj))
    return tuple(platform or zones)


def read_energy(zones: tuple[Zone, ...], now_s: float) -> Energy:
    """Return the counters' values, without those that have become unreadable."""
    found = {zone.path: _number(zone.path) for zone in zones}
    return Energy(now_s, {path: uj for path, uj in found.items() if uj is not None})


def mean_watts(zones: tuple[Zone, ...], before: Energy, after: Energy) -> float | None:
    """Return the mean power between two readings; None if they share no counter, or no time passed."""
    seconds = after.at_s - before.at_s
    spent_uj = [
        (after.counted_uj[zone.path] - before.counted_uj[zone.path]) % zone.range_uj
        for zone in zones
        if zone.path in before.counted_uj and zone.path in after.counted_uj
    ]
    return sum(spent_uj) / 1e6 / seconds if spent_uj and seconds > 0 else None


def card_watts(find: Callable[[str], str | None] = shutil.which) -> float | None:
    """Return what all NVIDIA cards draw now; None if there are none or none reports it. Takes up to 5 s."""
    output = output_of(find("nvidia-smi"), *_SMI_QUERY)
    watts = [_watts(line) for line in output.splitlines()[:_CARDS_MAX]]
    known = [each for each in watts if each is not None]
    return sum(known) if known else None


def _watts(line: str) -> float | None:
    """Return the watts of a line; None for cards that do not measure and print [N/A]."""
    try:
        watts = float(line)
    except ValueError:
        return None
    return watts if 0 <= watts < 1e5 else None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isascii() and text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""

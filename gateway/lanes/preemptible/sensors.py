"""The machine's load and power, as its NVIDIA cards and batteries report them."""

import shutil
from collections.abc import Callable
from pathlib import Path

from runtime.children import output_of

POWER_SUPPLY = Path("/sys/class/power_supply")

_SMI_QUERY = ("--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")
_CARDS_MAX = 64
_SUPPLIES_MAX = 64
# A mouse has a battery, too.
_NOT_OURS = "Device"


def gpu_percent(find: Callable[[str], str | None] = shutil.which) -> float | None:
    """Return the load of the busiest NVIDIA card in percent, by any program; None if unknown. Takes up to 5 s."""
    output = output_of(find("nvidia-smi"), *_SMI_QUERY)
    known = [float(line) for line in map(str.strip, output.splitlines()[:_CARDS_MAX]) if line.isdecimal()]
    return max((percent for percent in known if percent <= 100), default=None)


def is_on_battery(root: Path = POWER_SUPPLY) -> bool | None:
    """Return whether the machine runs on its battery; None if it has none, or the system does not say."""
    try:
        supplies = sorted(root.iterdir())[:_SUPPLIES_MAX]
    except OSError:
        return None
    plugs = [_text(each / "online") for each in supplies if _text(each / "type") in ("Mains", "USB", "Wireless")]
    batteries = [
        _text(each / "status")
        for each in supplies
        if _text(each / "type") in ("Battery", "UPS") and _text(each / "scope") != _NOT_OURS
    ]
    if not batteries:
        return None
    return "Discharging" in batteries and "1" not in plugs


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""

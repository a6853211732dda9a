"""What slows a machine down or will end its service, where the system tells: battery, radio, heat."""

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from cluster.machine import Condition

_INTERFACES = Path("/sys/class/net")
# Names that Linux' drivers give the sensors in a processor.
_PROCESSOR_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "soc_thermal")
_RADIO_NAMES = ("wi-fi", "wifi", "wlan", "wireless", "wlp")


def read_condition(host: str = "") -> Condition:
    """Look now. `host` is the address that other machines reach this one at."""
    sensors = _sensors()
    return Condition(
        on_battery=_on_battery(),
        on_wifi=_on_wifi(host),
        is_throttled=_is_throttled(sensors),
        temperature_c=_temperature_c(sensors),
    )


def _on_battery() -> bool | None:
    read = getattr(psutil, "sensors_battery", None)
    battery = read() if read else None
    if battery is None:  # No battery: whatever feeds it, it is the wall.
        return False if read else None
    return battery.power_plugged is False


def _on_wifi(host: str) -> bool | None:
    """Whether the interface with this address is a radio. macOS calls all of them en0, so it stays open there."""
    interface = next(
        (name for name, held in psutil.net_if_addrs().items() if any(a.address == host for a in held)), ""
    )
    if not interface:
        return None
    if platform.system() == "Linux":
        return (_INTERFACES / interface / "wireless").exists() or (_INTERFACES / interface / "phy80211").exists()
    if platform.system() == "Windows":
        return interface.lower().startswith(_RADIO_NAMES)
    return None


def _sensors() -> dict[str, list[Any]]:
    """Readings by driver, none where the system has none to tell."""
    read = getattr(psutil, "sensors_temperatures", None)
    return dict(read()) if read else {}


def _is_throttled(sensors: Mapping[str, Sequence[Any]]) -> bool | None:
    """Whether a sensor is at the temperature that its maker calls high."""
    known = [sensor for group in sensors.values() for sensor in group if sensor.high]
    return any(sensor.current >= sensor.high for sensor in known) if known else None


def _temperature_c(sensors: Mapping[str, Sequence[Any]]) -> float | None:
    """The processor's hottest place."""
    found = [sensor.current for name in _PROCESSOR_SENSORS for sensor in sensors.get(name, ())]
    return max(found, default=None)

"""Conditions that slow a machine down or end its service: battery, radio, heat. None if not reported."""

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from cluster.machine import Condition

_INTERFACES = Path("/sys/class/net")
# Names that Linux drivers give the sensors in a processor.
_PROCESSOR_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal", "cpu-thermal", "soc_thermal")
_RADIO_NAMES = ("wi-fi", "wifi", "wlan", "wireless", "wlp")


def read_condition(host: str = "") -> Condition:
    """Read the condition now. `host` is the address at which other machines reach this one."""
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
    if battery is None:  # Without a battery the machine runs on mains power.
        return False if read else None
    return battery.power_plugged is False


def _on_wifi(host: str) -> bool | None:
    """Tell whether the interface with this address is a radio.

    macOS names all interfaces alike (en0), so the answer stays None there.
    """
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
    """Return the readings by driver, or nothing if the system reports none."""
    read = getattr(psutil, "sensors_temperatures", None)
    return dict(read()) if read else {}


def _is_throttled(sensors: Mapping[str, Sequence[Any]]) -> bool | None:
    """Tell whether a sensor is at the temperature that its maker calls high."""
    known = [sensor for group in sensors.values() for sensor in group if sensor.high]
    return any(sensor.current >= sensor.high for sensor in known) if known else None


def _temperature_c(sensors: Mapping[str, Sequence[Any]]) -> float | None:
    """Return the temperature of the processor's hottest sensor, in degrees Celsius."""
    readings_c = [sensor.current for name in _PROCESSOR_SENSORS for sensor in sensors.get(name, ())]
    return max(readings_c, default=None)

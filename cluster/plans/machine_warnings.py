"""Problems of a machine or its links that show before anything fails, each with its remedy."""

from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

from cluster.machine import Machine
from cluster.plans.network import Link

_SKEW_MAX_S = 5.0
_MTU_MIN = 1400
# Beyond this, jitter dominates a hop's time.
_JITTER_SHARE = 0.5
_JITTER_MIN_S = 0.002
_MEMORY_SHARE_MIN = 0.1

Cause = Literal["battery", "wifi", "jitter", "heat", "clock", "mtu", "memory", "kernels"]


class MachineWarning(Struct, frozen=True):
    """A problem of a machine, and what to do about it."""

    cause: Cause
    what: str
    remedy: str


def machine_warnings(
    machine: Machine, links: Sequence[Link] = (), *, clock_skew_s: float = 0.0
) -> tuple[MachineWarning, ...]:
    """Return the warnings about one machine; `links` are those from it, `clock_skew_s` is in seconds."""
    measured = [link for link in links if link.is_measured]
    return (*_of_condition(machine, clock_skew_s), *_of_links(machine, measured), *_of_capacity(machine))


def _of_condition(machine: Machine, clock_skew_s: float) -> Iterator[MachineWarning]:
    condition = machine.condition
    if condition.on_battery:
        yield MachineWarning("battery", "it runs on its battery and may slow down or leave", "connect it to power")
    if condition.on_wifi:
        yield MachineWarning("wifi", "it is reached over Wi-Fi, whose delays vary", "connect it by cable")
    if condition.is_throttled:
        yield MachineWarning(
            "heat",
            "a sensor is at its limit, so it computes slower",
            "let it cool: check fans, dust and placement",
        )
    if abs(clock_skew_s) > _SKEW_MAX_S:
        way = "ahead of" if clock_skew_s > 0 else "behind"
        what = f"its clock is {abs(clock_skew_s):.0f} s {way} the controller's"
        yield MachineWarning("clock", what, "turn on time synchronization: certificates and logs depend on it")


def _of_links(machine: Machine, links: Sequence[Link]) -> Iterator[MachineWarning]:
    small = min((link.mtu_bytes for link in links), default=_MTU_MIN)
    if small < _MTU_MIN:
        what = f"a link only takes packets of up to {small} bytes"
        yield MachineWarning("mtu", what, "look for a VPN or tunnel in the path, or raise its MTU")
    shaky = max((link.jitter_s for link in links if _is_shaky(link)), default=0.0)
    if shaky and not machine.condition.on_wifi:
        what = f"a link's delay varies by {shaky * 1000:.1f} ms"
        yield MachineWarning("jitter", what, "use a cable, or find out what else uses the link")


def _of_capacity(machine: Machine) -> Iterator[MachineWarning]:
    if machine.memory_usable_bytes < _MEMORY_SHARE_MIN * machine.memory_total_bytes:
        what = f"only {machine.memory_usable_bytes / 2**30:.1f} GiB of its memory are free"
        yield MachineWarning("memory", what, "close other programs")
    for precision, speed in sorted(machine.pace.speeds.items()):
        if not speed.is_usable:
            what = f"it cannot compute in {precision}: {speed.reason}"
            yield MachineWarning("kernels", what, "update torch, or pin another precision")


def _is_shaky(link: Link) -> bool:
    return link.jitter_s > max(_JITTER_MIN_S, _JITTER_SHARE * link.delay_s)

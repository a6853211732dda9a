"""What a machine has to give: memory, cores, devices."""

import os
import platform
import socket

import psutil
from msgspec import Struct

# What the operating system and other programs need is not usable, however free it looks just now.
_SYSTEM_SHARE = 0.10


class Device(Struct, frozen=True):
    """Where a stage computes: "cpu", "cuda" or "mps"."""

    kind: str
    name: str
    memory_bytes: int


class Machine(Struct, frozen=True, kw_only=True):
    """A node's own account of its machine; `memory_usable_bytes` already leaves the system its share."""

    system: str
    architecture: str
    cores: int
    memory_total_bytes: int
    memory_usable_bytes: int
    device: Device


def usable_memory_bytes(share: float = 1.0) -> int:
    """Memory a node may fill: what is free, less the system's reserve, times its share of the machine."""
    memory = psutil.virtual_memory()
    return int(max(0, memory.available - _SYSTEM_SHARE * memory.total) * share)


def compute_threads(nodes: int = 1) -> int:
    """Threads for each of `nodes` stages: physical cores but one, shared out.

    The one is for links, head and gateway: a thread that waits for a core holds all others of its kernel up,
    which cost nine tenths of the speed where it was measured.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    physical = psutil.cpu_count(logical=False) or allowed
    return max(1, (min(allowed, physical) - 1) // nodes)


def own_address(*, ipv6: bool = False) -> str | None:
    """The address that this machine reaches others from, None without a network; nothing is sent to find out."""
    family, elsewhere = (socket.AF_INET6, "2001:db8::1") if ipv6 else (socket.AF_INET, "192.0.2.1")
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return None


def probe_machine(device: Device | None = None, share: float = 1.0) -> Machine:
    """Look at this machine. `share` below 1 is for several nodes on one machine."""
    memory = psutil.virtual_memory()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    usable = usable_memory_bytes(share)
    if device and device.kind != "cpu":
        usable = int(device.memory_bytes * (1 - _SYSTEM_SHARE) * share)
    return Machine(
        system=platform.system(),
        architecture=platform.machine(),
        cores=cores,
        memory_total_bytes=memory.total,
        memory_usable_bytes=usable,
        device=device or Device("cpu", platform.processor() or platform.machine(), usable),
    )

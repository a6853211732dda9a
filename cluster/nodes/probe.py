"""What a machine has to give: memory, cores, devices."""

import os
import platform
import socket

import psutil

from cluster.machine import Device, Machine, Pace
from cluster.nodes.condition import read_condition
from cluster.nodes.memory_limits import memory_limit

# What the operating system and other programs need is not usable, however free it looks just now.
_SYSTEM_SHARE = 0.10


def usable_memory_bytes(share: float = 1.0) -> int:
    """Memory a node may fill: what is free, less the system's reserve, times its share of the machine.

    Where a container or service has a limit of its own, that limit is the machine.
    """
    memory = psutil.virtual_memory()
    total_bytes, available_bytes = memory.total, memory.available
    if limit := memory_limit():
        total_bytes = min(total_bytes, limit.limit_bytes)
        available_bytes = min(available_bytes, limit.free_bytes)
    return int(max(0, available_bytes - _SYSTEM_SHARE * total_bytes) * share)


def total_memory_bytes() -> int:
    """The machine's memory, or as much of it as this process may ever have."""
    limit = memory_limit()
    total = int(psutil.virtual_memory().total)
    return min(total, limit.limit_bytes) if limit else total


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


def probe_machine(
    device: Device | None = None, share: float = 1.0, *, pace: Pace | None = None, host: str = ""
) -> Machine:
    """Look at this machine. `share` below 1 is for several nodes on one machine.

    `pace` is what its kernels were measured at, `host` the address that others reach it at.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    usable = usable_memory_bytes(share)
    if device and device.kind != "cpu":
        usable = int(device.memory_bytes * (1 - _SYSTEM_SHARE) * share)
    return Machine(
        system=platform.system(),
        architecture=platform.machine(),
        cores=cores,
        memory_total_bytes=total_memory_bytes(),
        memory_usable_bytes=usable,
        device=device or Device("cpu", platform.processor() or platform.machine(), usable),
        pace=pace or Pace(),
        condition=read_condition(host),
    )

"""A machine's resources: memory, cores, devices."""

import os
import platform
import socket

import psutil

from cluster.machine import Device, Machine, Pace
from cluster.nodes.condition import read_condition
from cluster.nodes.memory_limits import memory_limit

# The share of memory that the operating system and other programs need, even if it is free now.
_SYSTEM_SHARE = 0.10


def usable_memory_bytes(share: float = 1.0) -> int:
    """Return the bytes that a node may fill: free memory less the system's reserve, times its share.

    If a container or service has its own limit, that limit counts as the machine's memory.
    """
    memory = psutil.virtual_memory()
    total_bytes, available_bytes = memory.total, memory.available
    if limit := memory_limit():
        total_bytes = min(total_bytes, limit.limit_bytes)
        available_bytes = min(available_bytes, limit.free_bytes)
    return int(max(0, available_bytes - _SYSTEM_SHARE * total_bytes) * share)


def total_memory_bytes() -> int:
    """Return the machine's memory in bytes, or the part that this process may ever have."""
    limit = memory_limit()
    total = int(psutil.virtual_memory().total)
    return min(total, limit.limit_bytes) if limit else total


def compute_threads(nodes: int = 1) -> int:
    """Return the threads for each of `nodes` stages: all physical cores but one, divided evenly.

    One core is left for links, coordinator and gateway. A thread that waits for a core delays all other threads of
    its kernel. In measurements this cost nine tenths of the speed.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    physical = psutil.cpu_count(logical=False) or allowed
    return max(1, (min(allowed, physical) - 1) // nodes)


def own_address(*, ipv6: bool = False) -> str | None:
    """Return the address from which this machine reaches others, or None without a network. Send nothing."""
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
    """Return a description of this machine. `share` below 1 is for several nodes on one machine.

    `pace` is the measured speed of its kernels, `host` the address at which others reach it.
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

"""Checks of this machine: free memory, GPU and driver, disk, Wi-Fi, power, heat, clock."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil

from cluster.nodes.condition import read_condition
from cluster.nodes.probe import own_address, total_memory_bytes, usable_memory_bytes
from cluster.plans.network import ASSUMED
from gateway.cli.doctor.finding import Finding, fail, ok, unseen, warn
from runtime.children import output_of

_PATIENCE_S = 5.0
_MEMORY_SHARE_MIN = 0.1
_SWAP_SHARE_MAX = 0.5
_DISK_WARN_BYTES, _DISK_FAIL_BYTES = 10 * 2**30, 2**30
_MTU_MIN = 1400
_SMI_QUERY = ("--query-gpu=name,driver_version,memory.total,memory.free", "--format=csv,noheader,nounits")
_DRIVER = Path("/proc/driver/nvidia/version")
_MIB = 2**20


def look_at_machine(data_dir: Path) -> Iterator[Finding]:
    yield memory()
    yield from cards()
    yield disk(data_dir)
    yield from radio_power_heat()
    yield mtu()
    yield clock()


def memory() -> Finding:
    usable, total, swap = usable_memory_bytes(), total_memory_bytes(), psutil.swap_memory()
    what = f"{_gib(usable)} of {_gib(total)} free for models, excluding the system's share"
    if usable < _MEMORY_SHARE_MIN * total:
        return warn("memory", what, "close other programs, or run fewer nodes; plans use only free memory")
    if swap.total and swap.used > _SWAP_SHARE_MAX * swap.total:
        used = f"; {_gib(swap.used)} swapped out"
        return warn("memory", what + used, "free memory: swapped-out data slows down answers")
    return ok("memory", what)


def cards() -> Iterator[Finding]:
    """Check NVIDIA GPUs with nvidia-smi; without it with the kernel's files."""
    program = shutil.which("nvidia-smi")
    if program is None:
        if _DRIVER.exists():
            yield warn("driver", "an NVIDIA driver is loaded, but nvidia-smi is missing", "install it")
        elif list(Path("/dev").glob("nvidia[0-9]*")):
            yield fail("driver", "NVIDIA GPU without a driver", "install the driver and restart")
        else:
            yield ok("driver", "no NVIDIA GPU: layers run on the CPU (or an Apple GPU)")
        return
    try:
        done = subprocess.run(
            [program, *_SMI_QUERY], capture_output=True, timeout=_PATIENCE_S, check=False, text=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as error:
        yield fail("driver", f"nvidia-smi cannot be run: {type(error).__name__}", "reinstall the driver")
        return
    if done.returncode != 0:
        output_lines = (done.stdout or done.stderr).strip().splitlines()
        yield fail(
            "driver", f"nvidia-smi: {output_lines[0] if output_lines else 'failed'}", "reinstall the driver"
        )
        return
    yield from (_card(line) for line in done.stdout.splitlines()[:64] if line.strip())


def _card(line: str) -> Finding:
    name, driver, total, free = ([word.strip() for word in line.split(",")] + [""] * 4)[:4]
    what = f"{name}, driver {driver}"
    if not (total.isdigit() and free.isdigit()):
        return ok("driver", what)
    what += f": {_gib(int(free) * _MIB)} of {_gib(int(total) * _MIB)} free"
    if int(free) < _MEMORY_SHARE_MIN * int(total):
        return warn("driver", what, "close other programs that use the GPU, such as another inference server")
    return ok("driver", what)


def disk(data_dir: Path) -> Finding:
    place = next(folder for folder in (data_dir, *data_dir.parents) if folder.exists())
    free = shutil.disk_usage(place).free
    what = f"{_gib(free)} free at {data_dir}"
    if free < _DISK_FAIL_BYTES:
        return fail("disk", what, "free disk space: otherwise spending stops and no model can be downloaded")
    if free < _DISK_WARN_BYTES:
        return warn("disk", what, "free disk space before downloading a model, e.g. with `millrace rm MODEL`")
    return ok("disk", what)


def radio_power_heat() -> Iterator[Finding]:
    condition = read_condition(own_address() or "")
    if condition.on_wifi:
        yield warn("wi-fi", "this machine uses Wi-Fi, whose delays vary", "connect it by cable")
    elif condition.on_wifi is None:
        yield unseen("wi-fi", "unknown whether this machine uses Wi-Fi", "prefer a cable")
    else:
        yield ok("wi-fi", "this machine uses a cable")
    if condition.on_battery:
        yield warn("power", "this machine runs on battery and may slow down or shut down", "connect it to power")
    if condition.is_throttled:
        yield warn(
            "heat",
            "a temperature sensor is at its limit, so the machine is throttled",
            "improve cooling: fans, dust, location",
        )


def mtu() -> Finding:
    """Check the MTU of the default interface; the MTU of whole paths is measured between nodes."""
    address = own_address()
    held = psutil.net_if_addrs().items()
    interface = next((name for name, all_of in held if any(a.address == address for a in all_of)), None)
    if address is None or interface is None:
        return unseen("mtu", "this machine has no network", "connect it if other machines are to join")
    size = psutil.net_if_stats()[interface].mtu
    what = f"MTU of {interface} is {size} bytes"
    if size < _MTU_MIN:
        usual = ASSUMED.mtu_bytes
        return warn("mtu", what, f"check for a VPN or tunnel, or raise it: `ip link set {interface} mtu {usual}`")
    return ok("mtu", what)


def clock() -> Finding:
    """Check whether a time service runs; only the gateway sees the offset to other machines."""
    tool = shutil.which("timedatectl")
    is_synchronized = output_of(tool, "show", "--property=NTPSynchronized", "--value").strip()
    if is_synchronized == "yes":
        return ok("clock", "a time service keeps the clock")
    if is_synchronized == "no":
        return warn("clock", "no time service keeps the clock", "`timedatectl set-ntp true`")
    return unseen("clock", "unknown whether a time service keeps the clock", "turn on NTP")


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"

"""Emulate two machines on this one: network namespaces joined by a cable with a delay and a rate."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

STOP_TIMEOUT_S = 5.0
_PREFIX = "mrb"


@dataclass(frozen=True, slots=True)
class Link:
    """A cable's properties: the round trip, and the rate of each direction (0 is no limit)."""

    round_trip_ms: float
    mbit: float


LINKS = {
    "open": Link(0.0, 0.0),
    "lan": Link(0.3, 1000.0),
    "wifi": Link(5.0, 100.0),
    "wan": Link(20.0, 50.0),
    "5ms": Link(5.0, 0.0),
    "10ms": Link(10.0, 0.0),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process runs: one core, and a namespace or, with `namespace` None, this machine itself."""

    core: int
    address: str
    namespace: str | None = None

    def command(self, arguments: list[str]) -> list[str]:
        """Return the command that runs `arguments` here."""
        inside = ["ip", "netns", "exec", self.namespace] if self.namespace else []
        return [*inside, "taskset", "-c", str(self.core), *arguments]


def local_places() -> list[Place]:
    """Return two cores of this machine that communicate over its loopback."""
    return [Place(core, "127.0.0.1") for core in two_cores()]


def two_cores() -> tuple[int, int]:
    cores = sorted(os.sched_getaffinity(0))
    return cores[0], cores[-1]


class Network:
    """Two places and the cable between them. `shape` changes the cable's properties."""

    def __init__(self, cable: subprocess.Popen[str], places: list[Place]) -> None:
        self._cable = cable
        self.places = places

    def shape(self, link: Link) -> None:
        assert self._cable.stdin
        # Each direction gets half of the round trip.
        self._cable.stdin.write(f"{link.round_trip_ms / 2} {link.mbit}\n")
        self._cable.stdin.flush()


@contextmanager
def emulated() -> Iterator[Network]:
    """Yield both namespaces while the block runs. The link is open until it is shaped. Needs Linux and root."""
    if sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("ip"):
        sys.exit("emulated links need Linux, root and the ip command; --links loopback does without")
    _remove_stale()
    names = [f"{_PREFIX}{os.getpid()}-{number}" for number in (0, 1)]
    devices = [f"{name}t" for name in names]
    cable = subprocess.Popen(
        [sys.executable, "-m", "bench.cable", *devices],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert cable.stdout
        if cable.stdout.readline().strip() != "ready":
            sys.exit("the emulated cable did not start; is there a /dev/net/tun?")
        places = [
            Place(core, _make_namespace(name, device, number), name)
            for number, (name, device, core) in enumerate(zip(names, devices, two_cores(), strict=True))
        ]
        yield Network(cable, places)
    finally:
        assert cable.stdin
        cable.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            cable.wait(STOP_TIMEOUT_S)
        cable.kill()
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _make_namespace(name: str, device: str, number: int) -> str:
    """Make a namespace with the device as its eth0. Return its address."""
    address = f"10.88.0.{number + 1}"
    _ip("netns", "add", name)
    _ip("link", "set", device, "netns", name)
    inside = ("-n", name)
    _ip(*inside, "link", "set", device, "name", "eth0", "txqueuelen", "1000")
    _ip(*inside, "addr", "add", f"{address}/24", "dev", "eth0")
    _ip(*inside, "link", "set", "lo", "up")
    _ip(*inside, "link", "set", "eth0", "up")
    # Use what most machines use, whatever this one is set to.
    cubic = ["ip", "netns", "exec", name, "sysctl", "-qw", "net.ipv4.tcp_congestion_control=cubic"]
    subprocess.run(cubic, check=False, capture_output=True)
    return address


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _remove_stale() -> None:
    """Remove namespaces of benchmarks that were killed before they could do so."""
    listed = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout
    for line in listed.splitlines():
        name = line.split()[0]
        owner = name.removeprefix(_PREFIX).split("-")[0]
        if name.startswith(_PREFIX) and owner.isdigit() and not Path(f"/proc/{owner}").exists():
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

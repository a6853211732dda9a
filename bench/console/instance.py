"""Run the gateway behind the pages: a pool server that answers at once, two machines, several users."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec

from bench.console.viewers import Look, Looks, RecordingSink
from bench.gateway.arena import free_port
from bench.gateway.load import Order, Saw
from bench.gateway.processes import Placed, place
from bench.gateway.upstream import MODEL
from bench.models import DEMO_MODEL
from gateway.api.admin import HEADER
from gateway.console.browser import COOKIE
from runtime.data_folder import DataFolder

_ROOT = Path(__file__).parents[2]
_READY_S = 90.0
_LATE_S = 60.0
_JOINED = 2
# Raise the priority within its own session, and that of its session if Linux weighs sessions.
_AHEAD = (
    "sh",
    "-c",
    '[ -w /proc/self/autogroup ] && echo -15 > /proc/self/autogroup; exec nice -n -15 "$@"',
    "ahead",
)


@dataclass(frozen=True, slots=True)
class Visitor:
    """A user who signs in, and the pages that the user views."""

    name: str
    organization: str
    role: str
    pages: tuple[str, ...]

    @property
    def is_operator(self) -> bool:
        return self.role == "admin" and self.organization == "home"


_ADMIN_PAGES = (
    "/console/overview/live",
    "/console/requests/live",
    "/console/cluster/live",
    "/console/models/live",
)
_OWN_PAGES = ("/console/overview/live", "/console/requests/live")
VISITORS = (
    *(Visitor(name, "home", "admin", _ADMIN_PAGES) for name in ("ann", "ben", "cleo")),
    Visitor("dora", "lab", "admin", (*_OWN_PAGES, "/console/keys/live")),
    *(Visitor(name, "lab", "member", _OWN_PAGES) for name in ("ed", "fay")),
    Visitor("gus", "lab", "member", ("/console/models/live",)),
)
"""Twenty pages: four for each instance admin, three for an organization's admin, five for its members."""


class DidNotStart(Exception):
    """Raised when something needed for the measurement did not start. The message has its last output."""


@dataclass(slots=True)
class Instance:
    """The running gateway, made by `opened`. `keys` are the users', which are used in turn."""

    root: str
    gateway: Placed
    keys: tuple[str, ...]
    looks: list[Look]
    load_core: int
    ahead: tuple[str, ...]

    @property
    def cpu_s(self) -> float:
        """CPU seconds of the gateway's own process, its threads included.

        Machines and provider are separate processes.
        """
        return self.gateway.own_cpu_s

    def ask(self, order: Order) -> Saw:
        """Run an order in the load's process, addressed to this gateway with its keys."""
        addressed = msgspec.structs.replace(
            order, base_url=f"{self.root}/v1", key=self.keys[0], others=self.keys[1:]
        )
        command = (*self.ahead, sys.executable, "-m", "bench.gateway.load")
        placed = _piped(command, self.load_core)
        try:
            out, _ = placed.process.communicate(msgspec.json.encode(addressed), timeout=order.seconds + _LATE_S)
        finally:
            placed.stop()
        return msgspec.json.decode(out, type=Saw)

    @contextmanager
    def looked_at(self, heard: list[RecordingSink]) -> Iterator[None]:
        """Open all pages. Afterwards `heard` has what each received. Raises DidNotStart."""
        placed = _piped((*self.ahead, sys.executable, "-m", "bench.console.viewers"), self.load_core)
        stdin, stdout = placed.process.stdin, placed.process.stdout
        assert stdin
        assert stdout
        try:
            stdin.write(msgspec.json.encode(Looks(self.root, self.looks)) + b"\n")
            stdin.flush()
            if not stdout.readline():
                raise DidNotStart("the pages received nothing")
            yield
            out, _ = placed.process.communicate(timeout=_LATE_S)
            heard += msgspec.json.decode(out, type=list[RecordingSink])
        finally:
            placed.stop()


@contextmanager
def opened(folder: Path, *, server_core: int, load_core: int, is_ahead: bool = False) -> Generator[Instance]:
    """Start everything, and end it on exit. Raises DidNotStart.

    `is_ahead` runs all of it before other work of the machine (root).
    """
    ahead = _AHEAD if is_ahead else ()
    if not {server_core, load_core} <= os.sched_getaffinity(0):
        raise DidNotStart(f"cores {server_core} and {load_core} are required; see --server-core and --load-core")
    with ExitStack() as ending:
        upstream_port = free_port()
        command = (*ahead, sys.executable, "-m", "bench.gateway.upstream", str(upstream_port))
        upstream = place(command, [load_core], folder=_ROOT)
        ending.callback(upstream.stop)
        gateway, root = _started(folder, upstream_port, server_core, ahead, ending)
        for pid in set(gateway.pids) - {gateway.process.pid}:
            os.sched_setaffinity(pid, {load_core})
        with httpx.Client(base_url=root, timeout=30, trust_env=False) as client:
            keys, looks = _let_in(client, folder)
            _wait_for_machines(client, folder)
        yield Instance(root, gateway, keys, looks, load_core, ahead)


def _piped(command: tuple[str, ...], core: int) -> Placed:
    return place(command, [core], folder=_ROOT, output=subprocess.PIPE, errors=None)


def _started(
    folder: Path, upstream_port: int, core: int, ahead: tuple[str, ...], ending: ExitStack
) -> tuple[Placed, str]:
    port = free_port()
    backend = {"name": "upstream", "base_url": f"http://127.0.0.1:{upstream_port}/v1", "models": [MODEL]}
    environment = {
        "MILLRACE_DATA_DIR": str(folder / "data"),
        "MILLRACE_POOL__BACKENDS": json.dumps([backend | {"slots": 1024}]),
        "MILLRACE_SERVER__REQUESTS_MAX": "1024",
        "MILLRACE_LOG__LEVEL": "error",
    }
    words = ("up", "--model", str(DEMO_MODEL), "--nodes", str(_JOINED), "--host", "127.0.0.1", "--port", str(port))
    log_path = folder / "log"
    with log_path.open("wb") as log:
        command = (*ahead, sys.executable, "-m", "gateway", *words)
        placed = place(
            command, [core], environment=environment, folder=_ROOT, output=log.fileno(), errors=log.fileno()
        )
    ending.callback(placed.stop)
    root = f"http://127.0.0.1:{port}"
    until_s = time.monotonic() + _READY_S
    while time.monotonic() < until_s and placed.process.poll() is None:
        try:
            if httpx.get(f"{root}/healthz", trust_env=False).status_code == 200:
                return placed, root
        except httpx.TransportError:
            time.sleep(0.1)
    raise DidNotStart(f"the gateway did not start to answer: {log_path.read_text()[-500:]}")


def _admin(folder: Path) -> dict[str, str]:
    running = DataFolder(folder / "data").read_running()
    if running is None:
        raise DidNotStart("the gateway wrote no running file")
    return {HEADER: running["admin_token"]}


def _let_in(client: httpx.Client, folder: Path) -> tuple[tuple[str, ...], list[Look]]:
    """Create a key and a session for each visitor."""
    headers, keys, looks = _admin(folder), [], []

    def make(path: str, **fields: Any) -> dict[str, Any]:
        made: dict[str, Any] = client.post(path, json=fields, headers=headers).raise_for_status().json()
        return made

    make("/admin/organizations", id="lab")
    for visitor in VISITORS:
        make("/admin/users", user=visitor.name, organization=visitor.organization, role=visitor.role)
        fields = {
            "name": visitor.name,
            "user": visitor.name,
            "lanes": ["pool"],
            "may_administer": visitor.is_operator,
        }
        keys.append(str(make("/admin/keys", **fields)["api_key"]))
        client.cookies.clear()
        client.post("/console/login", data={"key": keys[-1]})
        session = client.cookies.get(COOKIE)
        if session is None:
            raise DidNotStart(f"{visitor.name} could not sign in")
        looks += [Look(visitor.name, f"{COOKIE}={session}", path) for path in visitor.pages]
    return tuple(keys), looks


def _wait_for_machines(client: httpx.Client, folder: Path) -> None:
    """Wait until the cluster page has a plan to show."""
    until_s = time.monotonic() + _READY_S
    while time.monotonic() < until_s:
        if client.get("/admin/cluster", headers=_admin(folder)).raise_for_status().json().get("plan"):
            return
        time.sleep(0.2)
    raise DidNotStart("the cluster has made no plan")

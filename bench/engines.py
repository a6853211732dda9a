"""Run engines under measurement: started on places with one core each, and ended with their block."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bench.network import Place
from bench.streams import Answer, Job

ROOT = Path(__file__).parents[1]
READY_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 15.0
POLL_S = 0.5
# One port for the running engine, another for its own processes.
PORT, INNER_PORT = 8480, 8481


class EngineFailed(Exception):
    """Raised when an engine did not start, with the end of its log."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A running engine: its address, and what it reports about itself (for Millrace, its plan)."""

    place: Place
    model: str
    api_key: str = "none"
    extra: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://{self.place.address}:{PORT}/v1"

    def ask(self, prompts: list[list[int]], tokens: int, timeout_s: float) -> list[Answer]:
        """Send all prompts at once, from a client on the engine's own first core."""
        job = Job(
            url=self.url,
            api_key=self.api_key,
            model=self.model,
            prompts=prompts,
            tokens=tokens,
            timeout_s=timeout_s,
            extra=self.extra,
        )
        output = _run(self.place, ["-m", "bench.streams"], msgspec.json.encode(job), timeout_s + 60)
        return msgspec.json.decode(output, type=list[Answer])


@contextmanager
def llama_alone(binaries: Path, model: Path, places: Sequence[Place], logs: Path) -> Iterator[Endpoint]:
    """Run llama.cpp's server with the whole model on the first place."""
    with ExitStack() as stack:
        server = _llama_server(stack, binaries, model, places[0], logs, [])
        yield server


@contextmanager
def llama_rpc(
    binaries: Path, model: Path, places: Sequence[Place], logs: Path, layers: int, more: Sequence[str] = ()
) -> Iterator[Endpoint]:
    """Run llama.cpp's server on the first place, with `layers` of the model on an RPC server on the second.

    `more` are further options of the server, such as its own speculation.
    """
    with ExitStack() as stack:
        worker = places[1]
        listen = ["-H", worker.address, "-p", str(INNER_PORT), "-t", "1"]
        program = str(binaries / "ggml-rpc-server")
        _start(stack, worker, [program, *listen], logs / "llama-rpc-worker.log", {})
        time.sleep(1.0)
        split = ["--rpc", f"{worker.address}:{INNER_PORT}", "-ngl", str(layers), *more]
        yield _llama_server(stack, binaries, model, places[0], logs, split)


def _llama_server(
    stack: ExitStack, binaries: Path, model: Path, place: Place, logs: Path, more: Sequence[str]
) -> Endpoint:
    program = str(binaries / "llama-server")
    # One thread for one core; eight slots of 768 tokens; no prompt cache, since no prompt repeats.
    slots = ["-t", "1", "-tb", "1", "-c", "6144", "-np", "8", "--cache-ram", "0", "--no-webui"]
    listen = ["--host", place.address, "--port", str(PORT)]
    log = logs / "llama-server.log"
    server = _start(stack, place, [program, "-m", str(model), *slots, *listen, *more], log, {})
    _until(lambda: _answers(place, "/health"), server, log)
    return Endpoint(place, model.stem, extra={"ignore_eos": True})


@contextmanager
def millrace(
    folder: Path,
    model: Path,
    places: Sequence[Place],
    settings: dict[str, str],
    logs: Path,
) -> Iterator[Endpoint]:
    """Run our gateway with a node on the first place, and one joined node on each further place.

    `folder` is kept between runs, so machines join and fetch their layers only once. `settings` are MILLRACE_*
    variables of the gateway.
    """
    # The model fits on one machine, so the planner would rightly not split it without this setting.
    environment = {"OMP_NUM_THREADS": "1", "MILLRACE_LOG__LEVEL": "info"}
    settings = {"MILLRACE_CLUSTER__STAGES_MIN": "64"} | settings
    gateway, first = folder / "gateway", places[0]
    data = ["--data-dir", str(gateway)]
    with ExitStack() as stack:
        listen = ["--host", first.address, "--port", str(PORT), "--model", str(model), "--nodes", "1"]
        command = [sys.executable, "-m", "gateway", "up", "--json", *listen, *data]
        log = logs / "millrace-gateway.log"
        server = _start(stack, first, command, log, environment | settings, reads=True)
        announced = _announcement(server, log)
        for number, place in enumerate(places[1:], start=2):
            node = folder / f"node-{number}"
            made = json.loads(_run(first, ["-m", "gateway", "token", "create", "--json", *data]))
            join = [
                "join",
                f"{first.address}:{made['port']}",
                "--token",
                made["token"],
                "--name",
                f"node-{number}",
            ]
            join = [sys.executable, "-m", "gateway", *join, "--data-dir", str(node)]
            _start(stack, place, join, logs / f"millrace-node-{number}.log", environment)

        def is_spread() -> bool:
            return _stages(_topology(first, data)) == len(places)

        _until(is_spread, server, log)
        yield Endpoint(first, model.name, announced["api_key"], facts=_topology(first, data))


def _announcement(server: subprocess.Popen[str], log: Path) -> dict[str, Any]:
    assert server.stdout
    line = server.stdout.readline()
    if not line:
        raise EngineFailed(f"the gateway did not start: {_tail(log)}")
    announced: dict[str, Any] = json.loads(line)
    return announced


def _topology(place: Place, data: list[str]) -> dict[str, Any]:
    topology: dict[str, Any] = json.loads(_run(place, ["-m", "gateway", "nodes", "--json", *data]))
    return topology


def _stages(topology: dict[str, Any]) -> int:
    """Return how many machines hold layers of a pipeline that serves."""
    holding = sum(node["layers"] is not None for node in topology["nodes"])
    return holding if topology["status"] == "ready" else 0


def _start(
    stack: ExitStack,
    place: Place,
    command: list[str],
    log: Path,
    environment: dict[str, str],
    *,
    reads: bool = False,
) -> subprocess.Popen[str]:
    """Start a process that ends with the stack. Without `reads` its stdout also goes to the log."""
    file = stack.enter_context(log.open("w"))
    process = subprocess.Popen(
        place.command(command),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if reads else file,
        stderr=file,
        env=os.environ | environment,
        start_new_session=True,
        text=True,
    )
    stack.callback(_stop, process)
    return process


def _stop(process: subprocess.Popen[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
            return


def _until(is_ready: Callable[[], bool], process: subprocess.Popen[str], log: Path) -> None:
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while not is_ready():
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise EngineFailed(f"{log.stem} is not ready: {_tail(log)}")
        time.sleep(POLL_S)


def _answers(place: Place, path: str) -> bool:
    """Return whether an HTTP server there answers 200 to a request from its own namespace."""
    probe = (
        "import http.client, sys; c = http.client.HTTPConnection(sys.argv[1], timeout=3); "
        "c.request('GET', sys.argv[2]); sys.exit(c.getresponse().status != 200)"
    )
    command = place.command([sys.executable, "-c", probe, f"{place.address}:{PORT}", path])
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def _run(place: Place, arguments: list[str], given: bytes = b"", timeout_s: float = 60.0) -> bytes:
    """Run one of our Python programs there to its end, and return its stdout. Raises EngineFailed."""
    command = place.command([sys.executable, *arguments])
    done = subprocess.run(command, check=False, cwd=ROOT, input=given, capture_output=True, timeout=timeout_s)
    if done.returncode != 0:
        raise EngineFailed(f"{' '.join(arguments[:4])}: {done.stderr.decode()[-500:]}")
    return done.stdout


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-600:]

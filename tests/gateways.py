"""Real gateways for tests: `millrace up` in a process of its own, with its nodes, its ledger and its signals."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import openai
import psutil

from gateway.api.admin import HEADER
from gateway.identity.caller import OWNER
from runtime.data_folder import DataFolder
from tests import templates
from tests.clusters import DEMO_MODEL
from tests.databases import prepared

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
PATIENCE_S = 60.0
"""What has not happened by then never will, however busy the machine is."""

T = TypeVar("T")


class ForkedCommand(templates.ForkedChild):
    """A running `millrace` command in a session of its own; its output is text."""

    def __init__(self, words: Sequence[str], environment: dict[str, str]) -> None:
        super().__init__(
            "gateway",
            words,
            environment=environment,
            folder=Path.cwd(),
            streams={"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE},
            has_own_session=True,
        )
        self.stdout, self.stderr = (
            os.fdopen(self.pipes[number], "r", encoding="utf-8", errors="replace") for number in (1, 2)
        )


@dataclass
class Gateway:
    """One running `millrace up`."""

    process: ForkedCommand
    folder: Path
    base_url: str
    api_key: str
    facts: dict[str, Any] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    clients: list[openai.OpenAI | httpx.Client] = field(default_factory=list)

    @property
    def root(self) -> str:
        return self.base_url.removesuffix("/v1")

    def openai(self, api_key: str | None = None) -> openai.OpenAI:
        """The official client, without retries that would hide a failure."""
        key = api_key or self.api_key
        direct = openai.DefaultHttpxClient(trust_env=False)
        client = openai.OpenAI(
            base_url=self.base_url, api_key=key, max_retries=0, timeout=PATIENCE_S, http_client=direct
        )
        self.clients.append(client)
        return client

    def http(self, api_key: str | None = None) -> httpx.Client:
        headers = {"authorization": f"Bearer {api_key or self.api_key}"}
        client = httpx.Client(base_url=self.root, headers=headers, timeout=PATIENCE_S, trust_env=False)
        self.clients.append(client)
        return client

    def admin(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """What the gateway tells this machine's owner, or makes for them of a body."""
        running = DataFolder(self.folder).read_running()
        assert running
        headers = {HEADER: running["admin_token"]}
        answer = httpx.request(
            "POST" if body else "GET",
            self.root + path,
            json=body,
            headers=headers,
            timeout=PATIENCE_S,
            trust_env=False,
        )
        return answer.raise_for_status().json()

    def cli(self, *words: str, environment: dict[str, str] | None = None) -> str:
        """A millrace command on this gateway's data directory; its stdout. `environment` is added to ours."""
        return run_command(*words, "--data-dir", str(self.folder), environment=environment)

    def new_key(self, name: str, lanes: str) -> str:
        """As `millrace key create` makes one, without a process of its own."""
        wanted = {"name": name, "user": OWNER, "lanes": lanes.split(",")}
        return str(self.admin("/admin/keys", wanted)["api_key"])

    def record(self, request_id: str) -> dict[str, Any]:
        """The request's row, written just after its answer."""
        return until(
            lambda: next((row for row in self.admin("/admin/requests") if row["request_id"] == request_id), None)
        )

    def processes(self) -> list[psutil.Process]:
        """The gateway and everything it started."""
        return templates.family_of(psutil.Process(self.process.pid))

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(STOP_TIMEOUT_S)


def until(look: Callable[[], T | None], timeout_s: float = PATIENCE_S) -> T:
    """What `look` finds, as soon as it finds something. It looks less often the longer that takes."""
    deadline_s, pause_s = time.monotonic() + timeout_s, 0.03
    while time.monotonic() < deadline_s:
        if (found := look()) is not None:
            return found
        time.sleep(pause_s)
        pause_s = min(0.3, pause_s * 1.2)
    raise AssertionError("it did not happen in time")


def run_command(*words: str, environment: dict[str, str] | None = None) -> str:
    """Run a millrace command that has to succeed; return its stdout. `environment` is added to ours."""
    done = complete_command(*words, environment=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def complete_command(*words: str, environment: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """Run a millrace command to its end. `environment` is added to ours."""
    command = ForkedCommand([*words], os.environ | (environment or {}))
    log: list[str] = []
    with command.stdout, reading(command, log):
        said = command.stdout.read()
        code = command.wait(PATIENCE_S)
    return subprocess.CompletedProcess(words, code, said, "".join(log))


@contextmanager
def running_gateway(
    folder: Path,
    *,
    model: Path | str | None = DEMO_MODEL,
    nodes: int = 2,
    settings: dict[str, str] | None = None,
    is_new: bool = False,
    port: int = 0,
    from_templates: bool = True,
) -> Iterator[Gateway]:
    """Start it, wait for its first line, stop it. `settings` are MILLRACE_* variables without the prefix.

    Port 0 is any free one. Unless it `is_new` it finds its tables made, which would take it a process of its own.
    Unless its children are `from_templates` they start as outside of tests.
    """
    if not is_new and "DATABASE__DSN" not in (settings or {}):
        prepared(folder)
    words = ["up", "--json", "--port", str(port), "--data-dir", str(folder)]
    if model:
        words += ["--model", str(model), "--nodes", str(nodes)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}
    environment |= {f"MILLRACE_{name}": value for name, value in (settings or {}).items()}
    if not from_templates:
        environment.pop(templates.FOLDER, None)
    process = ForkedCommand(words, environment)
    log: list[str] = []
    with process.stdout, reading(process, log):
        watchdog = threading.Timer(START_TIMEOUT_S, process.kill)
        watchdog.start()
        try:
            line = process.stdout.readline()
            watchdog.cancel()
            assert line, "".join(log)
            facts = json.loads(line)
            assert facts["pid"] == process.pid
            gateway = Gateway(process, folder, facts["base_url"], facts["api_key"], facts, log)
            try:
                yield gateway
            finally:
                for client in gateway.clients:
                    client.close()
        finally:
            watchdog.cancel()
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            finally:
                process.kill()


@contextmanager
def reading(process: ForkedCommand, log: list[str]) -> Iterator[None]:
    """Collect what a process writes to stderr, until it ends."""

    def read() -> None:
        with process.stderr:
            log.extend(iter(process.stderr.readline, ""))

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    try:
        yield
    finally:
        reading.join(PATIENCE_S)

"""Represent one participant: a gateway in its own process, with its own ledger."""

import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
from sqlalchemy import Connection, create_engine, select

from accounting.ledger.balances import balance
from accounting.tables import account_table
from demo.processes import first_line, running
from gateway.api.admin import HEADER
from runtime.data_folder import DataFolder

PATIENCE_S = 60.0
LOOK_S = 0.2
QUIET = {"MILLRACE_LOG__LEVEL": "error", "MILLRACE_LOG__ACCESS": "off"}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Party:
    """A running gateway. `api_key` is its owner's."""

    name: str
    folder: Path
    root: str
    api_key: str

    def machine(self, method: str, path: str, **body: Any) -> Any:
        """Send a request with the admin token from its folder."""
        state = DataFolder(self.folder).read_running()
        assert state
        return self._ask(method, path, {HEADER: state["admin_token"]}, body)

    def as_user(self, api_key: str, method: str, path: str, **body: Any) -> Any:
        return self._ask(method, path, {"authorization": f"Bearer {api_key}"}, body)

    def anonymously(self, method: str, path: str, **body: Any) -> Any:
        return self._ask(method, path, {}, body)

    def new_user(self, user: str, role: str = "member", **terms: Any) -> str:
        """Create a user with a key on these terms, and return the key."""
        self.machine("POST", "/admin/users", user=user, role=role)
        return str(self.machine("POST", "/admin/keys", name=user, user=user, **terms)["api_key"])

    def nano_on(self, code: str) -> int:
        """Return the balance of an account in nano-USD, read from its ledger."""
        with self._ledger() as reader:
            return balance(reader, code).posted_nano

    def nano_through(self, code: str) -> int:
        """Return all that was ever credited to an account that is empty between events."""
        came = select(account_table.c.credits_posted).where(account_table.c.code == code)
        with self._ledger() as reader:
            return reader.scalar(came) or 0

    @contextmanager
    def _ledger(self) -> Iterator[Connection]:
        engine = create_engine(f"sqlite:///file:{DataFolder(self.folder).database}?mode=ro&uri=true")
        try:
            with engine.connect() as reader:
                yield reader
        finally:
            engine.dispose()

    def _ask(self, method: str, path: str, headers: dict[str, str], body: dict[str, Any]) -> Any:
        headers = headers | {"idempotency-key": uuid.uuid4().hex}
        answer = httpx.request(
            method, self.root + path, json=body or None, headers=headers, timeout=30, trust_env=False
        )
        if answer.is_error:
            sys.exit(f"{self.name}: {method} {path} answers {answer.status_code}: {answer.text}")
        return answer.json()


class Process:
    """A gateway's process.

    It starts at once and is awaited later, so several start in parallel. It may start again.
    """

    def __init__(self, name: str, folder: Path, settings: Mapping[str, str], *words: str) -> None:
        self._name = name
        self._folder = folder
        self._command = ["gateway", "up", "--json", "--data-dir", str(folder), *words]
        self._environment = {**QUIET, **settings}
        self._running = ExitStack()

    def __enter__(self) -> "Process":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self._process = self._running.enter_context(running(self._command, self._environment))

    def tell_to_stop(self) -> None:
        self._process.terminate()

    def stop(self) -> None:
        self._running.close()

    def kill(self) -> None:
        """Kill the process, as a power cut would."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self.stop()

    def party(self) -> Party:
        """Wait until it is up. Call it once per start."""
        facts = json.loads(first_line(self._process, self._name))
        return Party(self._name, self._folder, facts["base_url"].removesuffix("/v1"), facts["api_key"])


def until(what: str, look: Callable[[], T | None]) -> T:
    """Return what `look` finds, as soon as it finds something. End the demo if that takes too long."""
    found = in_time(look)
    if found is None:
        sys.exit(f"{what} did not happen within {PATIENCE_S:.0f} s")
    return found


def in_time(look: Callable[[], T | None]) -> T | None:
    """Return what `look` finds; None if it finds nothing in time."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        if found := look():
            return found
        time.sleep(LOOK_S)
    return None

"""Names of machines: each has its own, it lasts, and whatever tells of a plan uses it."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.gateways import PATIENCE_S, ForkedCommand, Gateway, reading, running_gateway, until


@contextmanager
def joined(folder: Path, *words: str) -> Iterator[None]:
    """`millrace join` runs, as a service would run it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}
    process = ForkedCommand(["join", *words, "--threads", "1", "--data-dir", str(folder)], environment)
    with process.stdout, reading(process, []):
        try:
            yield
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def join_words(gateway: Gateway) -> tuple[str, str, str]:
    made = json.loads(gateway.cli("token", "create", "--json"))
    return made["token"], "--controller", f"{made['host']}:{made['port']}"


def here(gateway: Gateway) -> set[str]:
    """What `millrace nodes` prints, without the half second of CPU that the command takes to start."""
    return {node["node"] for node in gateway.admin("/admin/cluster")["nodes"]}


def is_here(gateway: Gateway, *names: str) -> Any:
    return until(lambda: here(gateway) == set(names) or None)


def test_two_machines_of_one_name_differ_and_a_name_given_once_lasts(tmp_path: Path) -> None:
    with running_gateway(tmp_path / "gateway", model=None) as gateway:
        with joined(tmp_path / "a", *join_words(gateway), "--name", "desk"):
            is_here(gateway, "desk")
            with joined(tmp_path / "b", *join_words(gateway), "--name", "Desk"):
                is_here(gateway, "desk", "Desk-2")
        with joined(tmp_path / "a"), joined(tmp_path / "b"):
            is_here(gateway, "desk", "Desk-2")
        with joined(tmp_path / "b", "--name", "shelf"):
            is_here(gateway, "shelf")


def test_plans_say_the_name_that_a_machine_has_now(tmp_path: Path) -> None:
    with running_gateway(tmp_path, nodes=1) as gateway:

        def told() -> str:
            return gateway.cli("nodes", "--json") + gateway.cli("plan", "--json")

        assert "node-1" in told()
        gateway.cli("machines", "rename", "node-1", "mill")
        after = told()
        assert "mill" in after
        assert "\n".join(re.findall(r".{60}node-1.{60}", after)) == ""

"""Nodes on the gateway's own machine: started again when they end, with the reason, unless they were removed."""

import asyncio
from pathlib import Path

import psutil
import pytest

from cluster.errors import ClusterError
from cluster.events import Chronicle
from cluster.nodes.absences import Absences
from cluster.nodes.child_processes import STARTS_MAX, ChildProcesses
from cluster.nodes.local_nodes import LocalNodes
from cluster.nodes.node import Agent
from cluster.nodes.node_options import NodeOptions
from tests.cluster.test_joining import controller, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.nodes.local_nodes.PAUSES_S", (0.01,))
    monkeypatch.setattr("cluster.nodes.child_processes.RESTART_PAUSES_S", (0.01,))


async def test_a_node_that_ends_again_and_again_says_why(tmp_path: Path, at_once: None) -> None:
    async with controller(tmp_path / "c") as (running, target):
        local = LocalNodes(1, tmp_path / "nodes")
        try:
            await local.start(target, ["no token"])
            local.keep_running(lambda: "another that is none", running.absences)
            await until(lambda: "(this is not a join token" in running.absences.words)
            await until(lambda: "3 times in a row; it restarts in" in running.topology().absences["node-1"])
        finally:
            await local.stop()
        assert all(not psutil.pid_exists(pid) for pid in local.pids)


async def test_a_node_that_was_removed_is_not_started_again(tmp_path: Path, at_once: None) -> None:
    async with controller(tmp_path / "c") as (running, target):
        local = LocalNodes(1, tmp_path / "nodes")
        try:
            await local.start(target, [running.new_token()])
            local.keep_running(running.new_token, running.absences)
            await until(lambda: bool(running.topology().members))
            await running.remove_machine("node-1")
            await asyncio.gather(*local._keepers)
            assert not running.topology().members
            assert not running.absences.by_name
            assert len(running.machines()) == 1
        finally:
            await local.stop()


async def test_a_stage_process_that_never_starts_is_the_reason_that_its_node_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A fourth start would happen a minute after the third, however long the node takes to end.
    pauses_s = (*[0.01] * STARTS_MAX, 60.0)
    monkeypatch.setattr("cluster.nodes.child_processes.RESTART_PAUSES_S", pauses_s)
    started: list[str] = []

    def broken(crew: ChildProcesses, role: str) -> tuple[str, list[str]]:
        started.append(role)
        return "cluster.no_such_module", []

    monkeypatch.setattr(ChildProcesses, "_program", broken)
    async with controller(tmp_path / "c") as (running, target):
        options = NodeOptions(
            name="node-1", folder=str(tmp_path / "n"), controller=target, token=running.new_token()
        )
        with pytest.raises(ClusterError, match=r"its stage process ended: exit status 1, 3 times"):
            await Agent(options).run()
    assert len(started) == STARTS_MAX


def test_absent_nodes_are_reported_until_they_are_back() -> None:
    chronicle = Chronicle()
    absences = Absences(chronicle)
    absences.note("node-1", "ended")
    absences.note("node-2", "ended, too")
    assert absences.words == "node-1 ended; node-2 ended, too"
    absences.end("node-1")
    absences.end("node-3")
    assert absences.words == "node-2 ended, too"
    assert len(chronicle.newest()) == 2

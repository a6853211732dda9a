"""A node's processes by deployment: the idle one is taken first, and each ends with its deployment."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from cluster import wire
from cluster.models.manifest import read_manifest
from cluster.models.stage_spec import StageSpec
from cluster.nodes.child_processes import ChildProcesses
from cluster.nodes.file_fetcher import ControllerSource, Fetcher
from cluster.nodes.node_options import NodeOptions
from cluster.trust.authority import Authority
from tests.cluster.test_joining import node_id
from tests.clusters import DEMO_MODEL, PATIENCE_S
from tests.templates import children_of

pytestmark = pytest.mark.anyio

SPEC = StageSpec(
    index=0, stages=1, first_layer=0, end_layer=4, precision="fp32", context_tokens=512, kv_blocks=8, slots=2
)


@asynccontextmanager
async def node(folder: Path) -> AsyncIterator[tuple[ChildProcesses, "asyncio.Queue[wire.Message]"]]:
    """The processes of a node, and what they report."""
    reports: asyncio.Queue[wire.Message] = asyncio.Queue()
    identity = Authority.open(folder / "authority").issue_identity(folder / "node", "node", "n")
    fetcher = Fetcher(folder / "models", identity, ControllerSource(reports.put))
    options = NodeOptions(name="n", folder=str(folder), token="", share=0.5, shares_files=True)
    processes = ChildProcesses(options, identity, fetcher, reports.put)
    await processes.start("127.0.0.1")
    try:
        yield processes, reports
    finally:
        await processes.stop()


def stage_order(folder: Path, deployment: str) -> wire.AssignStage:
    identity = Authority.open(folder / "authority").issue_identity(folder / "peer", "node", "p")
    manifest = read_manifest(DEMO_MODEL, "demo")
    return wire.AssignStage(1, SPEC, manifest, str(DEMO_MODEL), node_id(identity), deployment=deployment)


async def until_alone(*gone: psutil.Process) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while any(process.is_running() for process in gone):
            await asyncio.sleep(0.05)


async def test_processes_belong_to_deployments_and_end_with_them(tmp_path: Path) -> None:
    async with node(tmp_path) as (processes, reports):
        own = psutil.Process()
        await processes.probed_machine()
        [idle] = children_of(own, "cluster.engine.stage_process")
        assert set(processes.heartbeat().processes) == {""}

        for deployment in ("a", "b"):
            await processes.obey(stage_order(tmp_path, deployment))
            ready = await asyncio.wait_for(reports.get(), PATIENCE_S)
            assert isinstance(ready, wire.Ready)
            assert (ready.deployment, ready.epoch) == (deployment, 1)
        first, second = children_of(own, "cluster.engine.stage_process")
        assert idle == first, "the first deployment takes the idle process"
        held = processes.heartbeat().processes
        assert set(held) == {"a", "b"}
        assert all(report.held_bytes > 0 for report in held.values())

        await processes.obey(wire.Unload(1, deployment="a"))
        assert set(processes.heartbeat().processes) == {"a", "b"}, "it was assigned that epoch"
        await processes.obey(wire.Unload(2, deployment="a"))
        await until_alone(first)
        assert second.is_running()
        # The heartbeat names it until its memory is free.
        async with asyncio.timeout(PATIENCE_S):
            while set(processes.heartbeat().processes) != {"b"}:
                await asyncio.sleep(0.05)

        second.kill()
        failure = await asyncio.wait_for(reports.get(), PATIENCE_S)
        assert failure == wire.Failed(1, "stage", failure.reason, cause="ended", deployment="b")  # type: ignore[union-attr]
        async with asyncio.timeout(PATIENCE_S):
            while set(processes.heartbeat().processes) != {""}:
                await asyncio.sleep(0.05)
        assert len(children_of(own, "cluster.engine.stage_process")) == 1

"""Chaos: callers that hang up, nodes that die in the middle. What remains serves on, nothing leaks."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs
from structlog.typing import EventDict

from cluster import wire
from cluster.controller import Controller
from cluster.errors import ClusterUnavailable, StageLost
from cluster.generation import GenerateRequest, Limits, TextPrompt, TokenEvent
from cluster.joining import Target
from cluster.local_nodes import LocalNodes
from cluster.manifest import Manifest
from cluster.node import Agent, NodeOptions
from cluster.store import read_part
from tests.clusters import DEMO_MODEL, GREEDY, Cluster, running_cluster

pytestmark = pytest.mark.anyio

PROMPT = "Once upon a time"
LONG = 900


def child(agent: psutil.Process, role: str) -> psutil.Process | None:
    """A node's stage or head process."""
    for process in agent.children():
        if f"cluster.{role}_process" in " ".join(process.cmdline()):
            return process
    return None


async def hang_up_after_first_token(cluster: Cluster, number: int = 0) -> None:
    request = GenerateRequest(
        id=f"gone-{number}",
        prompt=TextPrompt(PROMPT),
        sampling=GREEDY,
        limits=Limits(max_tokens=LONG, ignore_eos=True),
    )
    events = cluster.controller.generate(request)
    async for event in events:
        if isinstance(event, TokenEvent):
            break
    await events.aclose()


async def test_hanging_up_frees_the_slot_at_once(tmp_path: Path) -> None:
    """With a single slot the next request starts when the first is dropped, not when it would have ended."""
    async with running_cluster(tmp_path, nodes=2, slots=1) as cluster:
        began = time.monotonic()
        whole = await cluster.ask(PROMPT, max_tokens=LONG)
        whole_s = time.monotonic() - began
        assert whole.done.completion_tokens == LONG
        began = time.monotonic()
        for number in range(5):
            await hang_up_after_first_token(cluster, number)
        after = await cluster.ask(PROMPT, max_tokens=8)
        assert time.monotonic() - began < whole_s
        assert after.token_ids[0] == whole.token_ids[0][:8]


async def kill_while_answering(cluster: Cluster, victim: psutil.Process) -> str:
    """Kill a process when an answer has begun; returns the error that the caller gets."""
    request = GenerateRequest(
        id="doomed", prompt=TextPrompt(PROMPT), sampling=GREEDY, limits=Limits(max_tokens=LONG, ignore_eos=True)
    )
    with pytest.raises(StageLost) as lost:
        async for event in cluster.controller.generate(request):
            if isinstance(event, TokenEvent) and victim.is_running():
                victim.kill()
                victim.wait(5)
    return str(lost.value)


@pytest.mark.parametrize(("part", "number"), [("node", 1), ("node", 2), ("stage", 1), ("stage", 2), ("head", 1)])
async def test_a_lost_process_ends_what_ran_and_the_rest_serves_on(tmp_path: Path, part: str, number: int) -> None:
    async with running_cluster(tmp_path, nodes=2) as cluster:
        before = await cluster.ask(PROMPT)
        epoch = cluster.controller.topology().epoch
        agent, other = cluster.node_process(number), cluster.node_process(3 - number)
        bystander = child(other, "stage")
        victim = agent if part == "node" else child(agent, part)
        assert victim
        assert bystander
        message = await kill_while_answering(cluster, victim)
        assert "lost" in message
        # The very next request waits for the new ring and gets the same tokens from it.
        after = await cluster.ask(PROMPT)
        assert after.token_ids == before.token_ids
        topology = cluster.controller.topology()
        assert topology.epoch > epoch
        assert bystander.is_running()
        if part == "node":
            assert topology.plan
            assert len(topology.plan.stages) == 1


async def test_requests_that_had_not_begun_survive_a_loss(tmp_path: Path) -> None:
    """One slot: the first request runs and is lost, the second has waited and is answered by the new ring."""
    async with running_cluster(tmp_path, nodes=2, slots=1) as cluster:
        expected = await cluster.ask(PROMPT)
        head = child(cluster.node_process(1), "head")
        running = asyncio.create_task(kill_while_answering(cluster, cluster.node_process(2)))
        await asyncio.sleep(0.05)
        waiting = asyncio.create_task(cluster.ask(PROMPT))
        assert "lost" in await running
        assert (await waiting).token_ids == expected.token_ids
        assert head
        assert head.is_running()


def freeze(agent: psutil.Process) -> list[psutil.Process]:
    """As when a machine loses its power: no process of it says anything any more, not even goodbye."""
    frozen = [agent, *agent.children()]
    for process in frozen:
        process.suspend()
    return frozen


@pytest.mark.parametrize("number", [1, 2])
async def test_a_frozen_machine_is_noticed_and_left_out(tmp_path: Path, number: int) -> None:
    """With number 1 it is the head that falls silent: its callers get their error, too."""
    async with running_cluster(tmp_path, nodes=2) as cluster:
        expected = await cluster.ask(PROMPT)
        frozen: list[psutil.Process] = []
        request = GenerateRequest(
            id="doomed",
            prompt=TextPrompt(PROMPT),
            sampling=GREEDY,
            limits=Limits(max_tokens=LONG, ignore_eos=True),
        )
        try:
            with pytest.raises(StageLost):
                async with asyncio.timeout(30):
                    async for event in cluster.controller.generate(request):
                        if isinstance(event, TokenEvent) and not frozen:
                            frozen = freeze(cluster.node_process(number))
            assert (await cluster.ask(PROMPT)).token_ids == expected.token_ids
            plan = cluster.controller.topology().plan
            assert plan
            assert [stage.member.name for stage in plan.stages] == [f"node-{3 - number}"]
        finally:
            for process in frozen:
                process.kill()


async def test_a_stopped_stage_is_replaced(tmp_path: Path) -> None:
    """Its machine is well and beats on: the agent notices that its own child does not answer."""
    async with running_cluster(tmp_path, nodes=1) as cluster:
        expected = await cluster.ask(PROMPT)
        stage = child(cluster.node_process(1), "stage")
        assert stage
        stage.suspend()
        async with asyncio.timeout(50):
            assert (await cluster.ask(PROMPT)).token_ids == expected.token_ids
        assert not stage.is_running()


@asynccontextmanager
async def newcomer(cluster: Cluster, folder: Path, kind: type[Agent] = Agent) -> AsyncIterator[None]:
    """Another machine joins, with a data folder and a copy of the model of its own."""
    options = NodeOptions(
        name="newcomer",
        folder=str(folder),
        controller=Target("127.0.0.1", cluster.port),
        token=cluster.controller.new_token(),
        share=0.5,
    )
    agent = asyncio.create_task(kind(options).run())
    try:
        async with asyncio.timeout(90):
            yield
    finally:
        agent.cancel()
        await asyncio.gather(agent, return_exceptions=True)


async def until_left_out(logs: list[EventDict]) -> None:
    while not any(line["event"] == "node left out" for line in logs):
        await asyncio.sleep(0.05)


def stages(cluster: Cluster) -> list[str]:
    plan = cluster.controller.topology().plan
    return [stage.member.name for stage in plan.stages] if plan else []


async def test_a_machine_that_cannot_get_its_files_changes_nothing(tmp_path: Path) -> None:
    """It joins, its copy of the model cannot be written, and the ring serves on as if nothing had happened."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "models").write_text("a file where the folder should be")
    async with running_cluster(tmp_path, nodes=1) as cluster:
        expected = await cluster.ask(PROMPT)
        with capture_logs() as logs:
            async with newcomer(cluster, tmp_path / "broken"):
                await until_left_out(logs)
                assert (await cluster.ask(PROMPT)).token_ids == expected.token_ids
                assert [member.name for member in cluster.controller.topology().members] == ["newcomer", "node-1"]
        assert cluster.controller.deployment
        assert cluster.controller.deployment.epoch == 1


class Walled(Agent):
    """A machine behind a firewall: it reaches everybody, nobody reaches it."""

    async def _report(self, message: wire.Message) -> None:
        if isinstance(message, wire.Ready):
            message = replace(message, port=1)
        await super()._report(message)


async def test_a_machine_that_nobody_reaches_is_the_one_that_is_left_out(tmp_path: Path) -> None:
    """It is not the one that says so: the machine that has served before serves on."""
    async with running_cluster(tmp_path, nodes=1) as cluster:
        expected = await cluster.ask(PROMPT)
        with capture_logs() as logs:
            async with newcomer(cluster, tmp_path / "walled", Walled):
                await until_left_out(logs)
                assert (await cluster.ask(PROMPT)).token_ids == expected.token_ids
                assert stages(cluster) == ["node-1"]


async def test_a_ring_that_breaks_while_a_newcomer_fetches_is_closed_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has the files serves; the one that still gets them takes part later."""

    def very_slowly(source: Path, manifest: Manifest, sha256: str, offset: int) -> tuple[bytes, int]:
        time.sleep(0.7)
        return read_part(source, manifest, sha256, offset)

    monkeypatch.setattr("cluster.controller.read_part", very_slowly)
    async with running_cluster(tmp_path, nodes=1) as cluster:
        expected = await cluster.ask(PROMPT)
        async with newcomer(cluster, tmp_path / "new"):
            while cluster.controller.topology().epoch < 2:
                await asyncio.sleep(0.05)
            victim = child(cluster.node_process(1), "stage")
            assert victim
            victim.kill()
            victim.wait(5)
            assert (await cluster.ask(PROMPT)).token_ids == expected.token_ids
            assert stages(cluster) == ["node-1"]
            folder = next((tmp_path / "new" / "models").iterdir())
            assert sum(path.stat().st_size for path in (folder / "tensors").iterdir()) < 8e6


async def test_a_newcomer_takes_part_when_it_has_its_files_and_answers_are_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(source: Path, manifest: Manifest, sha256: str, offset: int) -> tuple[bytes, int]:
        time.sleep(0.02)
        return read_part(source, manifest, sha256, offset)

    monkeypatch.setattr("cluster.controller.read_part", slowly)
    async with running_cluster(tmp_path, nodes=1) as cluster:
        expected = await cluster.ask(PROMPT, max_tokens=100)
        while_fetching = 0
        async with newcomer(cluster, tmp_path / "new"):
            while stages(cluster) != ["node-1", "newcomer"]:
                answer = await cluster.ask(PROMPT, max_tokens=100)
                assert answer.token_ids == expected.token_ids
                while_fetching += cluster.controller.topology().epoch == 2 and stages(cluster) == ["node-1"]
            assert (await cluster.ask(PROMPT, max_tokens=100)).token_ids == expected.token_ids
        assert while_fetching >= 1


async def test_a_model_that_comes_after_the_machines_is_deployed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first pull takes longer than anybody waits for machines."""
    monkeypatch.setattr("cluster.manager.GATHER_TIMEOUT_S", 0.1)
    controller = Controller(tmp_path / "cluster")
    local = LocalNodes(1, tmp_path / "nodes")
    try:
        port = await controller.start("127.0.0.1", 0)
        await local.start(Target("127.0.0.1", port), [controller.new_token()])
        async with asyncio.timeout(60):
            while not controller.topology().members:
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        await controller.load_model(str(DEMO_MODEL))
        # Hellos of a machine that is planned with may be read late: they are no news.
        (member,) = controller.topology().members
        for _ in range(2):
            controller._roster.answers.put_nowait((member, wire.Hello(member.name, member.machine)))
        await controller.wait_ready(30)
        assert controller.topology().epoch == 1
    finally:
        await controller.stop()
        await local.stop()


async def test_without_nodes_the_answer_is_a_reason(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, nodes=1) as cluster:
        cluster.node_process(1).kill()
        async with asyncio.timeout(10):
            while cluster.controller.is_ready:
                await asyncio.sleep(0.01)
        with pytest.raises(ClusterUnavailable, match="is gone"):
            await cluster.controller.wait_ready(0.5)


async def test_nothing_outlives_its_owner(tmp_path: Path) -> None:
    """kill -9 of an agent takes its stage and head along: they notice that their pipe is closed."""
    async with running_cluster(tmp_path, nodes=1) as cluster:
        agent = cluster.node_process(1)
        children = agent.children()
        assert len(children) == 2
        agent.kill()
        _, alive = await asyncio.to_thread(psutil.wait_procs, children, 10)
        assert not alive

"""Chaos: callers that hang up, nodes that die in the middle. What remains serves on, nothing leaks."""

import asyncio
import time
from pathlib import Path

import psutil
import pytest

from cluster.errors import ClusterUnavailable, StageLost
from cluster.generation import GenerateRequest, Limits, TextPrompt, TokenEvent
from cluster.joining import Target
from cluster.node import Agent, NodeOptions
from tests.clusters import GREEDY, Cluster, running_cluster

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


async def test_a_machine_that_cannot_load_is_left_out(tmp_path: Path) -> None:
    """It joins, its copy of the model cannot be written, and the others go on serving."""
    async with running_cluster(tmp_path, nodes=1) as cluster:
        expected = await cluster.ask(PROMPT)
        broken = tmp_path / "broken"
        broken.mkdir()
        (broken / "models").write_text("a file where the folder should be")
        options = NodeOptions(
            name="broken",
            folder=str(broken),
            controller=Target("127.0.0.1", cluster.port),
            token=cluster.controller.new_token(),
            share=0.5,
        )
        agent = asyncio.create_task(Agent(options).run())
        try:
            async with asyncio.timeout(60):
                while cluster.controller.topology().epoch < 3:
                    await asyncio.sleep(0.05)
                await cluster.controller.wait_ready(30)
            topology = cluster.controller.topology()
            assert [member.name for member in topology.members] == ["broken", "node-1"]
            assert topology.plan
            assert [stage.member.name for stage in topology.plan.stages] == ["node-1"]
            assert (await cluster.ask(PROMPT)).token_ids == expected.token_ids
        finally:
            agent.cancel()
            await asyncio.gather(agent, return_exceptions=True)


async def test_an_answer_is_finished_before_a_newcomer_takes_part(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, nodes=1) as cluster:
        expected = await cluster.ask(PROMPT, max_tokens=300)
        running = asyncio.create_task(cluster.ask(PROMPT, max_tokens=300))
        options = NodeOptions(
            name="late",
            folder=str(tmp_path / "late"),
            controller=Target("127.0.0.1", cluster.port),
            token=cluster.controller.new_token(),
            share=0.5,
        )
        agent = asyncio.create_task(Agent(options).run())
        try:
            while cluster.controller.topology().epoch < 2 or not cluster.controller.is_ready:
                running = asyncio.create_task(cluster.ask(PROMPT, max_tokens=300)) if running.done() else running
                if running.done():
                    assert running.result().token_ids == expected.token_ids
                await asyncio.sleep(0.05)
            assert (await running).token_ids == expected.token_ids
            assert (await cluster.ask(PROMPT, max_tokens=300)).token_ids == expected.token_ids
            plan = cluster.controller.topology().plan
            assert plan
            assert len(plan.stages) == 2
        finally:
            agent.cancel()
            await asyncio.gather(agent, return_exceptions=True)


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

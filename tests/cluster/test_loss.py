"""Callers hang up; machines join, fail at their part or leave for good. The rest of the cluster keeps serving."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs
from structlog.typing import EventDict

from cluster import wire
from cluster.controller import Controller
from cluster.errors import ClusterUnavailable
from cluster.generation import GenerateRequest, Limits, TextPrompt, TokenEvent
from cluster.models.manifest import Manifest
from cluster.models.store import read_part
from cluster.nodes.child import Role
from cluster.nodes.local_nodes import LocalNodes
from cluster.nodes.node import Agent
from cluster.nodes.node_options import NodeOptions
from cluster.trust.addresses import Target
from tests.clusters import DEMO_MODEL, GREEDY, PATIENCE_S, Answer, Cluster, child, running_cluster
from tests.templates import children_of

pytestmark = pytest.mark.anyio

PROMPT = "Once upon a time"
LONG = 900
TO_BE_CUT = 200
CHOICES = 8


async def hang_up_after_first_token(cluster: Cluster, number: int = 0) -> None:
    request = GenerateRequest(
        id=f"gone-{number}",
        prompt=TextPrompt(PROMPT),
        sampling=GREEDY,
        limits=Limits(max_tokens=TO_BE_CUT, ignore_eos=True),
        n=CHOICES,
    )
    events = cluster.controller.chat.generate(request)
    async for event in events:
        if isinstance(event, TokenEvent):
            break
    await events.aclose()


async def frames_sent(cluster: Cluster) -> int:
    """Return the total of frames that the coordinator has sent, once it is idle and the count is stable."""
    seen: list[wire.Vitals] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(seen) < 3 or seen[-1] != seen[-2] or seen[-1].requests:
            if (vitals := cluster.coordinator_vitals()) and (not seen or vitals is not seen[-1]):
                seen.append(vitals)
            await asyncio.sleep(0.02)
    return seen[-1].sent


async def test_hanging_up_frees_the_slot_at_once(tmp_path: Path) -> None:
    """With a single slot the next request starts when the first is dropped, not when it would have ended.

    Counted in frames around the pipeline: all five together need fewer than three to their end.
    """
    async with running_cluster(tmp_path, nodes=2, slots=1) as cluster:
        before = await frames_sent(cluster)
        whole = await cluster.ask(PROMPT, max_tokens=TO_BE_CUT)
        one_choice = await frames_sent(cluster) - before
        assert whole.done.completion_tokens == TO_BE_CUT
        before = await frames_sent(cluster)
        for number in range(5):
            await hang_up_after_first_token(cluster, number)
        after = await cluster.ask(PROMPT, max_tokens=8)
        assert await frames_sent(cluster) - before < 3 * CHOICES * one_choice
        assert after.token_ids[0] == whole.token_ids[0][:8]


async def answer_while(cluster: Cluster, damage: Callable[[], None]) -> list[int]:
    """Return a long answer's token ids. The damage happens after the answer has begun."""
    request = GenerateRequest(
        id="unharmed", prompt=TextPrompt(PROMPT), sampling=GREEDY, limits=Limits(max_tokens=LONG, ignore_eos=True)
    )
    token_ids: list[int] = []
    async for event in cluster.controller.chat.generate(request):
        if isinstance(event, TokenEvent):
            if not token_ids:
                damage()
            token_ids += event.token_ids
    return token_ids


@pytest.mark.slow
async def test_a_queued_request_survives_a_loss(tmp_path: Path) -> None:
    """One slot: the first request runs, the second waits, the machine of the second stage is lost for good."""
    async with running_cluster(tmp_path, nodes=2, slots=1) as cluster:
        expected = await cluster.ask(PROMPT, max_tokens=LONG)
        waiting: list[asyncio.Task[Answer]] = []

        def damage() -> None:
            waiting.append(asyncio.create_task(cluster.ask(PROMPT)))
            cluster.node_process(2).kill()

        assert await answer_while(cluster, damage) == expected.token_ids[0]
        assert (await waiting[0]).token_ids[0] == expected.token_ids[0][:32]
        assert stages(cluster) == ["node-1"]


@pytest.mark.slow
async def test_a_stopped_stage_is_replaced(tmp_path: Path) -> None:
    """Its machine still sends heartbeats and is the only one. The agent starts another process in its place."""
    async with running_cluster(tmp_path, nodes=1) as cluster:
        expected = await cluster.ask(PROMPT, max_tokens=LONG)
        stage = child(cluster.node_process(1), "stage")
        assert stage
        async with asyncio.timeout(50):
            assert await answer_while(cluster, stage.suspend) == expected.token_ids[0]
        assert not stage.is_running()


@asynccontextmanager
async def newcomer(cluster: Cluster, folder: Path, kind: type[Agent] = Agent) -> AsyncIterator[None]:
    """Let another machine join, with its own data directory and its own copy of the model."""
    options = NodeOptions(
        name="newcomer",
        folder=str(folder),
        controller=Target("127.0.0.1", cluster.port),
        token=cluster.controller.new_token(),
        share=0.5,
    )
    agent = asyncio.create_task(kind(options).run())
    try:
        async with asyncio.timeout(2 * PATIENCE_S):
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


@pytest.mark.slow
async def test_a_machine_that_cannot_get_its_files_changes_nothing(tmp_path: Path) -> None:
    """A machine joins, but its copy of the model cannot be written. The pipeline serves on undisturbed."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "models").write_text("a file where the folder should be")
    async with running_cluster(tmp_path, nodes=1, stages=2) as cluster:
        expected = await cluster.ask(PROMPT)
        with capture_logs() as logs:
            async with newcomer(cluster, tmp_path / "broken"):
                await until_left_out(logs)
                assert (await cluster.ask(PROMPT)).token_ids == expected.token_ids
                assert [member.name for member in cluster.controller.topology().members] == ["newcomer", "node-1"]
        assert cluster.controller.chat.deployment
        assert cluster.controller.chat.deployment.epoch == 1


class Walled(Agent):
    """A machine behind a firewall: it reaches all machines, but no machine reaches it."""

    async def _report(self, message: wire.Message) -> None:
        if isinstance(message, wire.Ready):
            message = replace(message, port=1)
        await super()._report(message)


@pytest.mark.slow
async def test_an_unreachable_machine_is_left_out(tmp_path: Path) -> None:
    """The other machine reports the failure. It has served before, so it is not blamed and serves on."""
    async with running_cluster(tmp_path, nodes=1, stages=2) as cluster:
        expected = await cluster.ask(PROMPT)
        with capture_logs() as logs:
            async with newcomer(cluster, tmp_path / "walled", Walled):
                await until_left_out(logs)
                assert (await cluster.ask(PROMPT)).token_ids == expected.token_ids
                assert stages(cluster) == ["node-1"]


class Liar(Agent):
    """After a number of frames of a pipeline, its stage sends frames with a wrong epoch."""

    honest_frames = 0

    def __init__(self, options: NodeOptions) -> None:
        super().__init__(options)
        self._true_program = self._children._program
        self._children._program = self._program  # type: ignore[method-assign]

    def _program(self, role: Role) -> tuple[str, list[str]]:
        module, arguments = self._true_program(role)
        if role != "stage":
            return module, arguments
        return "tests.fakes.lying_stage", [*arguments, str(self.honest_frames)]


class LateLiar(Liar):
    honest_frames = 3


@pytest.mark.parametrize("kind", [Liar, pytest.param(LateLiar, marks=pytest.mark.slow)])
async def test_a_stage_that_names_a_wrong_epoch_is_left_out_at_once(tmp_path: Path, kind: type[Agent]) -> None:
    """Its link ends with the first such frame, and only this machine is blamed. Answers do not change."""
    async with running_cluster(tmp_path, nodes=1, stages=2) as cluster:
        expected = await cluster.ask(PROMPT)
        with capture_logs() as logs:
            async with newcomer(cluster, tmp_path / "liar", kind):
                left_out = asyncio.create_task(until_left_out(logs))
                while not left_out.done():
                    assert (await cluster.ask(PROMPT)).token_ids == expected.token_ids
                    await asyncio.wait((left_out,), timeout=0.5)
                assert (await cluster.ask(PROMPT)).token_ids == expected.token_ids
                assert stages(cluster) == ["node-1"]
                [liar] = [m.node_id for m in cluster.controller.topology().members if m.name == "newcomer"]
        told = [(line["node_id"], str(line["reason"])) for line in logs if line["event"] == "node left out"]
        assert {node_id for node_id, _ in told} == {liar}, told
        assert any("newcomer is left out for 30 s" in event.text for event in cluster.controller.events())
        assert any("the machine before it sent epoch" in reason for _, reason in told), told


@pytest.mark.slow
async def test_a_pipeline_that_breaks_while_a_new_machine_fetches_is_replaced_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines that have the files serve. The machine that still fetches takes part later."""

    def very_slowly(source: Path, manifest: Manifest, sha256: str, offset: int) -> tuple[bytes, int]:
        time.sleep(0.7)
        return read_part(source, manifest, sha256, offset)

    monkeypatch.setattr("cluster.controller.read_part", very_slowly)
    async with running_cluster(tmp_path, nodes=1, stages=2) as cluster:
        expected = await cluster.ask(PROMPT)
        async with newcomer(cluster, tmp_path / "new"):
            while cluster.controller.topology().epoch < 2:
                await asyncio.sleep(0.05)
            victim = child(cluster.node_process(1), "stage")
            assert victim
            victim.kill()
            victim.wait(PATIENCE_S)
            assert (await cluster.ask(PROMPT)).token_ids == expected.token_ids
            assert stages(cluster) == ["node-1"]
            folder = next((tmp_path / "new" / "models").iterdir())
            assert sum(path.stat().st_size for path in (folder / "tensors").iterdir()) < 8e6


@pytest.mark.slow
async def test_a_newcomer_takes_part_when_it_has_its_files_and_answers_are_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(source: Path, manifest: Manifest, sha256: str, offset: int) -> tuple[bytes, int]:
        time.sleep(0.02)
        return read_part(source, manifest, sha256, offset)

    monkeypatch.setattr("cluster.controller.read_part", slowly)
    async with running_cluster(tmp_path, nodes=1, stages=2) as cluster:
        expected = await cluster.ask(PROMPT, max_tokens=100)
        while_fetching = 0
        async with newcomer(cluster, tmp_path / "new"):
            while len(stages(cluster)) < 2:
                answer = await cluster.ask(PROMPT, max_tokens=100)
                assert answer.token_ids == expected.token_ids
                while_fetching += cluster.controller.topology().epoch == 2 and stages(cluster) == ["node-1"]
            assert (await cluster.ask(PROMPT, max_tokens=100)).token_ids == expected.token_ids
        assert while_fetching >= 1


async def test_a_model_that_comes_after_the_machines_is_deployed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first pull takes longer than the cluster waits for machines."""
    monkeypatch.setattr("cluster.control.manager.GATHER_TIMEOUT_S", 0.1)
    controller = Controller(tmp_path / "cluster")
    local = LocalNodes(1, tmp_path / "nodes")
    try:
        port = await controller.start("127.0.0.1", 0)
        await local.start(Target("127.0.0.1", port), [controller.new_token()])
        async with asyncio.timeout(60):
            while not controller.topology().members:
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        await controller.chat.load_model(str(DEMO_MODEL))
        # Hellos of a machine in the plan may be read late. They are not new.
        (member,) = controller.topology().members
        for _ in range(2):
            controller.chat.manager._subscription.answers.put(member, wire.Hello(member.name, member.machine))
        await controller.chat.wait_ready(PATIENCE_S)
        assert controller.topology().epoch == 1
    finally:
        await controller.stop()
        await local.stop()


async def test_a_lost_node_ends_its_processes_and_callers_get_a_reason(tmp_path: Path) -> None:
    """After kill -9 of an agent, its stage and coordinator notice that their pipe is closed."""
    async with running_cluster(tmp_path, nodes=1) as cluster:
        agent = cluster.node_process(1)
        children = children_of(agent)
        assert len(children) == 2
        agent.kill()
        async with asyncio.timeout(PATIENCE_S):
            while cluster.controller.chat.is_ready:
                await asyncio.sleep(0.01)
            while "was lost" not in await refusal(cluster):
                await asyncio.sleep(0.05)
        _, alive = await asyncio.to_thread(psutil.wait_procs, children, PATIENCE_S)
        assert not alive


async def refusal(cluster: Cluster) -> str:
    with pytest.raises(ClusterUnavailable) as caught:
        await cluster.controller.chat.wait_ready(0.5)
    return str(caught.value)

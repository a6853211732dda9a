"""Machines and processes that end, stop or crawl in the middle of answers: callers do not notice."""

import asyncio
import contextlib
import statistics
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psutil
import pytest
import structlog

from cluster.generation import GenerateRequest, Limits, TextPrompt, TokenEvent
from tests.clusters import GREEDY, PATIENCE_S, Cluster, child, running_cluster
from tests.examples import examples
from tests.templates import family_of

pytestmark = pytest.mark.anyio

log = structlog.get_logger(__name__)

PROMPTS = ("Once upon a time", "The river", "In the morning the old man", "A stone")
LONG = examples(100, 250)
# The longest silence in an answer, on a machine that is busy with other things.
MOVE_PAUSE_S = 5.0


@dataclass(slots=True)
class Stream:
    """One answer as its caller sees it. `pause_s` is the longest silence in the middle of it."""

    prompt: str
    max_tokens: int = LONG
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    pause_s: float = 0.0
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, cluster: Cluster, name: str) -> "Stream":
        request = GenerateRequest(
            id=name,
            prompt=TextPrompt(self.prompt),
            sampling=GREEDY,
            limits=Limits(max_tokens=self.max_tokens, ignore_eos=True),
        )
        heard_s = 0.0
        async for event in cluster.controller.chat.generate(request):
            if isinstance(event, TokenEvent):
                now_s = time.monotonic()
                self.pause_s = max(self.pause_s, now_s - heard_s if self.token_ids else 0.0)
                heard_s = now_s
                self.token_ids += event.token_ids
                self.text += event.text
                self.begun.set()
        return self


async def disturbed(cluster: Cluster, name: str, damage: Callable[[], None]) -> list[Stream]:
    """Return the answers to all prompts, run at once; the damage happens after all have begun."""
    streams = [Stream(prompt) for prompt in PROMPTS]
    running = [asyncio.create_task(stream.run(cluster, f"{name}-{at}")) for at, stream in enumerate(streams)]
    for stream in streams:
        await stream.begun.wait()
    damage()
    return await asyncio.gather(*running)


async def undisturbed(cluster: Cluster) -> list[Stream]:
    return await asyncio.gather(*(Stream(prompt).run(cluster, f"calm-{at}") for at, prompt in enumerate(PROMPTS)))


def the_same(streams: list[Stream], expected: list[Stream]) -> bool:
    return [(s.token_ids, s.text) for s in streams] == [(s.token_ids, s.text) for s in expected]


def agent(cluster: Cluster, at: int) -> psutil.Process:
    """Return the agent on the machine of the stage `at`."""
    plan = cluster.controller.topology().plan
    assert plan
    return cluster.node_process(int(plan.stages[at].member.name.removeprefix("node-")))


def pipeline(cluster: Cluster) -> tuple[str, ...]:
    plan = cluster.controller.topology().plan
    return plan.pipeline if plan else ()


def standbys(cluster: Cluster) -> set[str]:
    """Return the machines outside the pipeline that hold copies of its stages."""
    return {copy.member.node_id for copy in cluster.controller.topology().standbys}


def process_of(cluster: Cluster, at: int, role: str) -> psutil.Process:
    found = child(agent(cluster, at), role)
    assert found
    return found


def freeze(machine: psutil.Process) -> list[psutil.Process]:
    """Stop all processes of a machine, as if it lost power: none of them closes its connections."""
    frozen = family_of(machine)
    for process in frozen:
        process.suspend()
    return frozen


def thaw(frozen: list[psutil.Process]) -> None:
    for process in frozen:
        with contextlib.suppress(psutil.Error):
            process.resume()


async def settled(cluster: Cluster, machines: int) -> None:
    """Wait until all machines are present, a pipeline serves, and the other machines hold copies of its stages."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            topology = cluster.controller.topology()
            busy = {*pipeline(cluster)} | standbys(cluster)
            if len(topology.members) == machines == len(busy) and cluster.controller.chat.is_ready:
                return
            await asyncio.sleep(0.05)


async def nothing_is_held(cluster: Cluster) -> None:
    """Wait until no request and no block remains on the coordinator, which has every stage check its count."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            vitals = cluster.coordinator_vitals()
            if vitals and (vitals.requests, vitals.kv_blocks) == (0, 0):
                return
            await asyncio.sleep(0.05)


@pytest.mark.timeout(600)
async def test_losses_leave_no_trace(tmp_path: Path) -> None:
    """With two stages and a standby, a stage's process ends, then the coordinator's machine, then one stops."""
    async with running_cluster(tmp_path, nodes=3, stages=2, goal="latency") as cluster:
        expected = await undisturbed(cluster)
        await settled(cluster, 3)

        victim, (spare,) = process_of(cluster, 1, "stage"), standbys(cluster)
        epoch, bystander = cluster.controller.topology().epoch, process_of(cluster, 0, "stage")
        streams = await disturbed(cluster, "stage", victim.kill)
        assert the_same(streams, expected)
        assert cluster.controller.topology().epoch > epoch
        # The copy that was loaded takes over; `python -m bench failover` measures the pause.
        assert spare in pipeline(cluster)
        assert bystander.is_running()
        await settled(cluster, 3)

        machine, (spare,) = agent(cluster, 0), standbys(cluster)
        streams = await disturbed(cluster, "coordinator", machine.kill)
        assert the_same(streams, expected)
        assert spare in pipeline(cluster)
        await nothing_is_held(cluster)

        frozen: list[psutil.Process] = []
        machine = agent(cluster, 1)
        try:
            streams = await disturbed(cluster, "frozen", lambda: frozen.extend(freeze(machine)))
            assert the_same(streams, expected)
            assert len(cluster.controller.topology().members) == 1
        finally:
            thaw(frozen)
        # The machine comes back by itself, and the pipeline has two stages again, as configured.
        await settled(cluster, 2)
        assert len(pipeline(cluster)) == 2
        assert the_same([await Stream(PROMPTS[0]).run(cluster, "again")], expected[:1])
        await nothing_is_held(cluster)


@pytest.mark.slow
@pytest.mark.parametrize("role", ["stage", "coordinator"])
async def test_a_stopped_process_is_detected(tmp_path: Path, role: str) -> None:
    """Its machine still sends heartbeats. The process is not killed at once: it may only be very slow.

    `python -m bench check` measures how soon.
    """
    async with running_cluster(tmp_path, nodes=2) as cluster:
        expected = await undisturbed(cluster)
        victim = process_of(cluster, 0, role)

        async def watch() -> None:
            epoch = cluster.controller.topology().epoch
            while cluster.controller.chat.is_ready and cluster.controller.topology().epoch == epoch:
                await asyncio.sleep(0.01)

        watching = asyncio.create_task(watch())
        streams = await disturbed(cluster, role, victim.suspend)
        async with asyncio.timeout(PATIENCE_S):
            await watching
        assert the_same(streams, expected)
        assert victim.is_running()
        victim.resume()


@pytest.mark.slow
async def test_a_planned_move_interrupts_no_answer(tmp_path: Path) -> None:
    """A machine is drained in the middle of answers. They move at once instead of ending there first."""
    async with running_cluster(tmp_path, nodes=3, stages=2, goal="latency") as cluster:
        expected = await undisturbed(cluster)
        plan = cluster.controller.topology().plan
        assert plan
        leaving = plan.stages[1].member

        def damage() -> None:
            draining.append(asyncio.create_task(cluster.controller.drain_machine(leaving.name)))

        draining: list[asyncio.Task[object]] = []
        streams = await disturbed(cluster, "drain", damage)
        assert the_same(streams, expected)
        assert max(stream.pause_s for stream in streams) < MOVE_PAUSE_S
        await settled_without(cluster, leaving.node_id)


async def settled_without(cluster: Cluster, node_id: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if pipeline(cluster) and node_id not in pipeline(cluster):
                return
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_a_hundred_losses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes and machines are killed or stopped; all four greedy answers always equal the undisturbed ones."""
    # Machines that break pipelines repeatedly pause longer each time. Here they come back at once.
    monkeypatch.setattr("cluster.control.fault_attribution.SETTLED_S", 0.0)
    chance = Random(3)
    pauses: dict[str, list[float]] = {}
    async with running_cluster(tmp_path, nodes=3, stages=2, goal="latency") as cluster:
        expected = await undisturbed(cluster)
        for number in range(100):
            await settled(cluster, 3)
            kind, target = chance.choice(sorted(DAMAGES)), chance.randrange(2)
            streams = await harmed(cluster, number, kind, target)
            assert the_same(streams, expected), (number, kind, target)
            pauses.setdefault(kind, []).append(max(stream.pause_s for stream in streams))
            await nothing_is_held(cluster)
    with capsys.disabled():
        for kind, seconds in sorted(pauses.items()):
            median_s, most_s = round(statistics.median(seconds), 2), round(max(seconds), 2)
            log.info("losses", kind=kind, times=len(seconds), median_s=median_s, most_s=most_s)


async def harmed(cluster: Cluster, number: int, kind: str, target: int) -> list[Stream]:
    """Return answers that a failure interrupts. The failure is repaired after they have ended."""
    repair = asyncio.Event()
    broken: list[asyncio.Task[None]] = []

    def damage() -> None:
        broken.append(asyncio.create_task(DAMAGES[kind](cluster, target, repair)))

    streams = await disturbed(cluster, f"{number}-{kind}", damage)
    repair.set()
    await asyncio.gather(*broken)
    return streams


async def kill_process(cluster: Cluster, at: int, repair: asyncio.Event, role: str = "stage") -> None:
    process_of(cluster, at if role == "stage" else 0, role).kill()
    await repair.wait()


async def kill_machine(cluster: Cluster, at: int, repair: asyncio.Event) -> None:
    victim = agent(cluster, at)
    number = cluster.nodes.pids.index(victim.pid) + 1
    victim.kill()
    await repair.wait()
    await cluster.nodes.restart(number)


async def stop(cluster: Cluster, at: int, repair: asyncio.Event, role: str) -> None:
    frozen = (
        freeze(agent(cluster, at))
        if role == "machine"
        else [process_of(cluster, at if role == "stage" else 0, role)]
    )
    for process in frozen:
        process.suspend()
    await repair.wait()
    thaw(frozen)


Damage = Callable[[Cluster, int, asyncio.Event], Coroutine[None, None, None]]
DAMAGES: dict[str, Damage] = {
    "kill stage": kill_process,
    "kill coordinator": lambda cluster, at, repair: kill_process(cluster, at, repair, "coordinator"),
    "kill machine": kill_machine,
    "stop stage": lambda cluster, at, repair: stop(cluster, at, repair, "stage"),
    "stop coordinator": lambda cluster, at, repair: stop(cluster, at, repair, "coordinator"),
    "stop machine": lambda cluster, at, repair: stop(cluster, at, repair, "machine"),
}


@pytest.mark.slow
async def test_nothing_leaks_over_ten_thousand_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers come, go and hang up while processes are killed: no caller gets an error, and no block leaks."""
    monkeypatch.setattr("cluster.control.fault_attribution.SETTLED_S", 0.0)
    async with running_cluster(tmp_path, nodes=3, stages=2, goal="latency") as cluster:
        for round_number in range(20):
            await settled(cluster, 3)
            kind = ("kill stage", "kill coordinator", "kill machine")[round_number % 3]
            repair = asyncio.Event()
            crowd = asyncio.gather(*(_worker(cluster, round_number, number, 500 // 25) for number in range(25)))
            await asyncio.sleep(1)
            damage = asyncio.create_task(DAMAGES[kind](cluster, round_number % 2, repair))
            await asyncio.sleep(1)
            repair.set()
            await asyncio.gather(damage, crowd)
            await nothing_is_held(cluster)
    with capsys.disabled():
        log.info("soak", requests=20 * 500, epochs=cluster.controller.topology().epoch)


async def _worker(cluster: Cluster, round_number: int, number: int, requests: int) -> None:
    """Run one caller after the other. They request short answers and do not read all of them to the end."""
    chance = Random(f"{round_number}/{number}")
    for at in range(requests):
        tokens = chance.randint(1, 30)
        request = GenerateRequest(
            id=f"soak-{round_number}-{number}-{at}",
            prompt=TextPrompt("word " * chance.randint(1, 60)),
            sampling=GREEDY,
            limits=Limits(max_tokens=tokens, ignore_eos=True),
        )
        got = 0
        async with contextlib.aclosing(cluster.controller.chat.generate(request)) as events:
            async for event in events:
                if isinstance(event, TokenEvent):
                    got = event.completion_tokens
                    if chance.random() < 0.02:
                        break
            else:
                assert got == tokens

"""Measure how long streams pause when a machine fails under them, and how many are lost.

Eight streams decode over local nodes when one node is killed, with all its processes at once. The pause is the
longest time between two pieces of text of any stream. A stream is lost if its caller gets an error, and changed if
its tokens differ from those of the undisturbed run. Of three nodes, one stands by with copies of both stages. Of
two nodes, the remaining one must make a new plan and hold everything. Each kill has a cluster of its own.
"""

import argparse
import asyncio
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.chain import make_chain
from bench.models import DEMO_MODEL
from cluster.controller import Controller
from cluster.errors import ClusterError
from cluster.generation import GenerateRequest, Limits, Sampling, TokenEvent, TokenPrompt
from cluster.models.model_card import Precision
from cluster.nodes.local_nodes import LocalNodes
from cluster.trust.addresses import Target

STREAMS, PROMPT_TOKENS, STAGES = 8, 48, 2
NODES = {"standby": 3, "replan": 2}
READY_TIMEOUT_S = 300.0
STREAM_TIMEOUT_S = 180.0

_ids = itertools.count()


@dataclass(slots=True)
class _Stream:
    """What one caller received."""

    token_ids: list[int] = field(default_factory=list)
    events_s: list[float] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial. `victim` is the node of the "last" stage, or that of the "coordinator"."""

    model: Path
    precision: Precision | None
    nodes: int
    victim: str
    tokens: int
    settle_s: float


@dataclass(frozen=True, slots=True)
class Loss:
    """One machine's failure under running streams. `partition` has the stages and standbys before and after."""

    pause_s: float
    lost: int
    changed: int
    partition: str


def main(arguments: list[str]) -> None:
    given = _parse(arguments)
    model = make_chain(given.models) if given.models else DEMO_MODEL
    print(f"{os.cpu_count()} cores, {model.name}, {STREAMS} streams of {given.tokens} tokens")
    print("| way | killed | kills | stages + standbys | pause s: median, longest | lost | changed | load |")
    print("|---|---|---|---|---|---|---|---|")
    for way in given.ways:
        for victim in given.victims:
            trial = Trial(model, given.precision, NODES[way], victim, given.tokens, given.settle)
            kills = [asyncio.run(measure_loss(trial)) for _ in range(given.kills)]
            print(_line(way, victim, kills), flush=True)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench failover", description=__doc__)
    parser.add_argument(
        "--models", type=Path, help="measure the 0.5 B model in this folder instead of the demo model"
    )
    parser.add_argument("--precision", default=None)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--settle", type=float, default=5.0, help="seconds that standbys have to load")
    parser.add_argument("--ways", nargs="*", choices=NODES, default=list(NODES))
    parser.add_argument("--victims", nargs="*", choices=["last", "coordinator"], default=["last", "coordinator"])
    return parser.parse_args(arguments)


def _line(way: str, victim: str, kills: list[Loss]) -> str:
    pauses_s = [kill.pause_s for kill in kills]
    partitions = ", ".join(sorted({kill.partition for kill in kills}))
    lost, changed = sum(kill.lost for kill in kills), sum(kill.changed for kill in kills)
    return (
        f"| {way} | {victim} stage's node | {len(kills)} | {partitions} "
        f"| {statistics.median(pauses_s):.2f}, {max(pauses_s):.2f} "
        f"| {lost} of {STREAMS * len(kills)} | {changed} | {os.getloadavg()[0]:.1f} |"
    )


async def measure_loss(trial: Trial) -> Loss:
    """Kill one node under running streams. Raises SystemExit if they end before that."""
    with tempfile.TemporaryDirectory(prefix="millrace-failover-") as scratch:
        async with _cluster(Path(scratch), trial) as (controller, local):
            await asyncio.sleep(trial.settle_s)
            expected = await _undisturbed(controller, trial.tokens)
            before = _partition(controller)
            streams = [_Stream() for _ in range(STREAMS)]
            running = asyncio.gather(
                *(_follow(controller, stream, at, trial.tokens) for at, stream in enumerate(streams))
            )
            await _until_all_decode(streams, running, trial.tokens // 4)
            killed_s = time.monotonic()
            _kill(_agent(controller, local, trial.victim))
            await running
            return Loss(
                pause_s=max(_longest_gap_s(stream, killed_s) for stream in streams),
                lost=sum(bool(stream.error) for stream in streams),
                changed=sum(
                    not stream.error and stream.token_ids != want.token_ids
                    for stream, want in zip(streams, expected, strict=True)
                ),
                partition=f"{before} -> {_partition(controller)}",
            )


async def _until_all_decode(streams: list[_Stream], running: asyncio.Future[list[None]], tokens: int) -> None:
    """Wait until every stream has `tokens` tokens, and none is near its end."""
    while min(len(stream.token_ids) for stream in streams) < tokens:
        done, _ = await asyncio.wait([running], timeout=0.005)
        if done:
            raise SystemExit(f"the streams ended before the kill: {streams[0].error or 'ask for more tokens'}")


@asynccontextmanager
async def _cluster(folder: Path, trial: Trial) -> AsyncIterator[tuple[Controller, LocalNodes]]:
    controller = Controller(
        folder / "cluster",
        precision=trial.precision,
        expected_nodes=trial.nodes,
        stages_min=STAGES,
        # For throughput, a third machine would be a third stage.
        goal="latency",
    )
    port = await controller.start("127.0.0.1", 0)
    local = LocalNodes(trial.nodes, folder / "nodes", log_style="json:critical")
    try:
        await controller.chat.load_model(str(trial.model))
        await local.start(Target("127.0.0.1", port), [controller.new_token() for _ in range(trial.nodes)])
        await controller.chat.wait_ready(READY_TIMEOUT_S)
        yield controller, local
    finally:
        await controller.stop()
        await local.stop()


async def _undisturbed(controller: Controller, tokens: int) -> list[_Stream]:
    """Run all streams to their end, without a kill."""
    streams = [_Stream() for _ in range(STREAMS)]
    await asyncio.gather(*(_follow(controller, stream, at, tokens) for at, stream in enumerate(streams)))
    if errors := [stream.error for stream in streams if stream.error]:
        raise SystemExit(f"a stream failed before anything was killed: {errors[0]}")
    return streams


async def _follow(controller: Controller, stream: _Stream, number: int, tokens: int) -> None:
    request = GenerateRequest(
        id=f"failover-{next(_ids)}",
        prompt=TokenPrompt([300 + (37 * number + 11 * at) % 3000 for at in range(PROMPT_TOKENS)]),
        sampling=Sampling(temperature=0.0),
        limits=Limits(max_tokens=tokens, ignore_eos=True),
    )
    try:
        async with asyncio.timeout(STREAM_TIMEOUT_S):
            async for event in controller.chat.generate(request):
                if isinstance(event, TokenEvent):
                    stream.events_s.append(time.monotonic())
                    stream.token_ids += event.token_ids
    except (ClusterError, TimeoutError) as error:
        stream.error = str(error) or "nothing came before the timeout"


def _longest_gap_s(stream: _Stream, killed_s: float) -> float:
    """Return the longest gap from the last text before the kill on.

    A lost stream's silence before its error is no gap.
    """
    after = [at for at in stream.events_s if at >= killed_s]
    before = [at for at in stream.events_s if at < killed_s]
    points = [*before[-1:], *after]
    return max((later - earlier for earlier, later in itertools.pairwise(points)), default=0.0)


def _partition(controller: Controller) -> str:
    plan = controller.topology().plan
    return f"{len(plan.stages)} + {len(plan.standbys)}" if plan else "0"


def _agent(controller: Controller, local: LocalNodes, victim: str) -> psutil.Process:
    """Return the agent of the node with the first stage and the coordinator, or of the one with the last stage."""
    plan = controller.topology().plan
    assert plan
    stage = plan.stages[0 if victim == "coordinator" else -1]
    # Local nodes are called node-1, node-2, ... in the order of their processes.
    return psutil.Process(local.pids[int(stage.member.name.removeprefix("node-")) - 1])


def _kill(agent: psutil.Process) -> None:
    """Kill an agent with all its processes, as if the machine were gone."""
    for process in [agent, *agent.children(recursive=True)]:
        process.kill()

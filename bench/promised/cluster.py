"""Measure how soon a cluster notices what goes wrong, with the demo model and nodes in processes of their own."""

import asyncio
import tempfile
import time
from pathlib import Path

from bench.failover import NODES, Trial, measure_loss
from bench.models import DEMO_MODEL
from cluster.generation import GenerateRequest, GenerationEvent, Limits, TextPrompt, TokenEvent
from tests.clusters import GREEDY, PATIENCE_S, Cluster, child, running_cluster

STANDBY = "pause of a stream whose machine is killed, with a hot standby"
REPLAN = "pause of a stream whose machine is killed, with a new plan"
LOST = "streams that are lost or changed with a machine"
FROZEN = "a process that stands still is noticed"
HANG_UP = "first token after a caller hung up, in the time of the answer that was dropped, one slot"
_QUIET = "json:critical"
_PROMPT = "Once upon a time"
_LONG, _STREAM_TOKENS = 400, 300
_SETTLES_S = 8.0


def measure() -> dict[str, float]:
    """Return seconds, streams, and for HANG_UP a ratio of two times."""
    losses = {
        name: asyncio.run(
            measure_loss(Trial(DEMO_MODEL, None, NODES[way], "coordinator", _STREAM_TOKENS, settle_s))
        )
        for name, way, settle_s in ((STANDBY, "standby", _SETTLES_S), (REPLAN, "replan", 0.0))
    }
    found = {name: loss.pause_s for name, loss in losses.items()}
    return found | {
        LOST: sum(loss.lost + loss.changed for loss in losses.values()),
        FROZEN: asyncio.run(_frozen_s()),
        HANG_UP: asyncio.run(_hang_up_share()),
    }


async def _frozen_s() -> float:
    """Stop a stage in the middle of an answer, and return when the cluster gives up its pipeline."""
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        async with running_cluster(Path(folder), nodes=2, log_style=_QUIET) as cluster:
            plan = cluster.controller.topology().plan
            assert plan
            number = int(plan.stages[-1].member.name.removeprefix("node-"))
            stage = child(cluster.node_process(number), "stage")
            assert stage
            begun = asyncio.Event()
            answering = asyncio.create_task(_answer(cluster, begun))
            await begun.wait()
            epoch = cluster.controller.topology().epoch
            stage.suspend()
            began_s = time.monotonic()
            async with asyncio.timeout(PATIENCE_S):
                while cluster.controller.chat.is_ready and cluster.controller.topology().epoch == epoch:  # noqa: ASYNC110  nothing signals it
                    await asyncio.sleep(0.01)
            noticed_s = time.monotonic() - began_s
            stage.resume()
            await answering
            return noticed_s


async def _hang_up_share() -> float:
    """Return the first token's time behind a dropped answer, over the time that the answer takes to its end."""
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        async with running_cluster(Path(folder), nodes=2, slots=1, log_style=_QUIET) as cluster:
            began_s = time.monotonic()
            await _answer(cluster, asyncio.Event())
            whole_s = time.monotonic() - began_s
            events = cluster.controller.chat.generate(_request("dropped", _LONG))
            async for event in events:
                if isinstance(event, TokenEvent):
                    break
            began_s = time.monotonic()
            await events.aclose()
            await cluster.ask(_PROMPT, max_tokens=1)
            return (time.monotonic() - began_s) / whole_s


async def _answer(cluster: Cluster, begun: asyncio.Event) -> None:
    event: GenerationEvent
    async for event in cluster.controller.chat.generate(_request("whole", _LONG)):
        if isinstance(event, TokenEvent):
            begun.set()


def _request(name: str, tokens: int) -> GenerateRequest:
    return GenerateRequest(
        id=name,
        prompt=TextPrompt(_PROMPT),
        sampling=GREEDY,
        limits=Limits(max_tokens=tokens, ignore_eos=True),
    )

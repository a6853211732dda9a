"""Measure the cluster lane's tokens per second: demo model and random 100 M Llama, 1 and 2 stages, 1 and 8
streams.
"""

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.models import DEMO_MODEL, make_random
from cluster.controller import Controller
from cluster.generation import GenerateRequest, Limits, Sampling, TokenEvent, TokenPrompt
from cluster.models.model_card import Precision
from cluster.nodes.local_nodes import LocalNodes
from cluster.trust.addresses import Target

PROMPT_TOKENS = 64
READY_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Speed:
    """One measurement: the total throughput, and the median time to first token."""

    decode_tokens_per_s: float
    ttft_ms: float


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench cluster", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--nodes", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 8])
    given = parser.parse_args(arguments)
    asyncio.run(_measure_all(given.rounds, given.tokens, given.nodes, given.streams))


async def _measure_all(rounds: int, tokens: int, nodes: list[int], streams: list[int]) -> None:
    print(f"{os.cpu_count()} cores, {PROMPT_TOKENS} prompt and {tokens} output tokens, median of {rounds} rounds")
    print("| model | stages | streams | decode tokens/s | TTFT ms | load |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        for model in (DEMO_MODEL, make_random(Path(scratch) / "random-100m")):
            for count in nodes:
                async with local_cluster(Path(scratch) / f"{model.name}-{count}", model, count) as controller:
                    await _run(controller, 1, 16)
                    for width in streams:
                        speeds = [await _run(controller, width, tokens) for _ in range(rounds)]
                        decode = statistics.median(speed.decode_tokens_per_s for speed in speeds)
                        ttft_ms = statistics.median(speed.ttft_ms for speed in speeds)
                        load = os.getloadavg()[0]
                        print(f"| {model.name} | {count} | {width} | {decode:.0f} | {ttft_ms:.0f} | {load:.1f} |")


@asynccontextmanager
async def local_cluster(
    folder: Path,
    model: Path,
    nodes: int,
    *,
    precision: Precision | None = None,
    slots: int = 32,
    kv_disk_gb: float = 0,
) -> AsyncIterator[Controller]:
    """A model over nodes of this machine."""
    controller = Controller(folder / "cluster", precision=precision, expected_nodes=nodes, slots=slots)
    port = await controller.start("127.0.0.1", 0)
    local = LocalNodes(nodes, folder / "nodes", log_style="json:error", kv_disk_gb=kv_disk_gb)
    try:
        await controller.chat.load_model(str(model))
        await local.start(Target("127.0.0.1", port), [controller.new_token() for _ in range(nodes)])
        await controller.chat.wait_ready(READY_TIMEOUT_S)
        yield controller
    finally:
        await controller.stop()
        await local.stop()


async def _run(controller: Controller, streams: int, tokens: int) -> Speed:
    """Start all streams together. Decoding counts from the moment when each has begun."""
    arrivals = await asyncio.gather(*(_stream(controller, tokens) for _ in range(streams)))
    begun_s = max(stream.first_s for stream in arrivals)
    ended_s = max(stream.last_s for stream in arrivals)
    decoded = sum(stream.tokens_after(begun_s) for stream in arrivals)
    ttft_ms = statistics.median(1000 * (stream.first_s - stream.sent_s) for stream in arrivals)
    return Speed(decoded / max(1e-9, ended_s - begun_s), ttft_ms)


@dataclass(frozen=True, slots=True)
class _Arrivals:
    """When a request was sent and when its text came. One event may have several tokens."""

    sent_s: float
    events_s: list[float]
    tokens: int

    @property
    def first_s(self) -> float:
        return self.events_s[0]

    @property
    def last_s(self) -> float:
        return self.events_s[-1]

    def tokens_after(self, begun_s: float) -> float:
        return sum(at > begun_s for at in self.events_s) * self.tokens / len(self.events_s)


async def _stream(controller: Controller, tokens: int) -> _Arrivals:
    request = GenerateRequest(
        id=f"bench-{random.getrandbits(64):x}",
        prompt=TokenPrompt([random.randrange(10, 4000) for _ in range(PROMPT_TOKENS)]),
        sampling=Sampling(temperature=0.0),
        limits=Limits(max_tokens=tokens, ignore_eos=True),
    )
    sent_s = time.perf_counter()
    events = controller.chat.generate(request)
    arrivals = [time.perf_counter() async for event in events if isinstance(event, TokenEvent)]
    return _Arrivals(sent_s, arrivals, tokens)

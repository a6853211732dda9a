"""Measure the time to first token of a long prompt after a restart: read from disk against computed.

Everything is stopped and started again between rounds, and the saved blocks leave the page cache. After each start
comes a short request, then the last round's prompt, which is read, then a new one of the same length, which is
computed. The model is a random Llama of 100 M parameters.
"""

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.cluster import local_cluster
from bench.models import make_random
from cluster.controller import Controller
from cluster.generation import Done, GenerateRequest, Limits, Sampling, TokenEvent, TokenPrompt
from cluster.models.model_card import Precision
from cluster.plans.plan import BLOCK_TOKENS

SAVED_TIMEOUT_S = 120.0
DISK_GB = 4.0
OUTPUT_TOKENS = 8


@dataclass(frozen=True, slots=True)
class _Answer:
    """One request: its time to first token, how much of the prompt was reused, and its greedy tokens."""

    ttft_s: float
    cached_tokens: int
    token_ids: list[int]


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench restart", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=8000, help="length of the prompt")
    parser.add_argument("--nodes", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--precision", default="fp32")
    given = parser.parse_args(arguments)
    asyncio.run(_measure_all(given.rounds, given.tokens, given.nodes, given.precision))


async def _measure_all(rounds: int, tokens: int, nodes: list[int], precision: Precision) -> None:
    print(f"{os.cpu_count()} cores, {precision}, prompts of {tokens} tokens, median of {rounds} rounds")
    print("| stages | computed s | read s | read divided by computed (range) | tokens read | same answer | load |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        model = make_random(Path(scratch) / "random-100m", tokens + 512)
        for count in nodes:
            pairs = await _rounds(Path(scratch) / f"{count}", model, count, rounds, tokens, precision)
            ratios = [read.ttft_s / computed.ttft_s for computed, read in pairs]
            same = sum(computed.token_ids == read.token_ids for computed, read in pairs)
            print(
                f"| {count} | {statistics.median(computed.ttft_s for computed, _ in pairs):.2f} "
                f"| {statistics.median(read.ttft_s for _, read in pairs):.3f} "
                f"| {statistics.median(ratios):.4f} ({min(ratios):.4f}-{max(ratios):.4f}) "
                f"| {min(read.cached_tokens for _, read in pairs)} | {same} of {len(pairs)} "
                f"| {os.getloadavg()[0]:.1f} |"
            )


async def _rounds(
    folder: Path, model: Path, nodes: int, rounds: int, tokens: int, precision: Precision
) -> list[tuple[_Answer, _Answer]]:
    """Return (computed, read) of each round."""
    pairs: list[tuple[_Answer, _Answer]] = []
    prompt: list[int] = []
    computed: _Answer | None = None
    for _ in range(rounds + 1):
        async with local_cluster(
            folder, model, nodes, precision=precision, slots=4, kv_disk_gb=DISK_GB
        ) as controller:
            await _ask(controller, _random_prompt(300))
            if computed:
                pairs.append((computed, await _ask(controller, prompt)))
            if len(pairs) < rounds:
                prompt = _random_prompt(tokens)
                had = _saved(folder)
                computed = await _ask(controller, prompt)
                await _wait_saved(folder, had + nodes * (tokens // BLOCK_TOKENS))
        await asyncio.to_thread(_leave_page_cache, folder)
    return pairs


def _random_prompt(tokens: int) -> list[int]:
    return [random.randrange(10, 4000) for _ in range(tokens)]


def _saved(folder: Path) -> int:
    return sum(1 for _ in folder.glob("nodes/*/kv/*/*"))


async def _wait_saved(folder: Path, blocks: int) -> None:
    async with asyncio.timeout(SAVED_TIMEOUT_S):
        while True:
            if _saved(folder) >= blocks:
                return
            await asyncio.sleep(0.1)


def _leave_page_cache(folder: Path) -> None:
    for path in folder.glob("nodes/*/kv/*/*"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


async def _ask(controller: Controller, prompt: list[int]) -> _Answer:
    request = GenerateRequest(
        id=f"bench-{random.getrandbits(64):x}",
        prompt=TokenPrompt(prompt),
        sampling=Sampling(temperature=0.0),
        limits=Limits(max_tokens=OUTPUT_TOKENS, ignore_eos=True),
    )
    sent_s, first_s, cached_tokens, token_ids = time.perf_counter(), 0.0, 0, list[int]()
    async for event in controller.chat.generate(request):
        if isinstance(event, TokenEvent):
            first_s = first_s or time.perf_counter()
            token_ids += event.token_ids
        elif isinstance(event, Done):
            cached_tokens = event.cached_tokens
    return _Answer(first_s - sent_s, cached_tokens, token_ids)

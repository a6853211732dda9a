"""Measure the owner's wait for a first token while market jobs use all that they may, against an idle machine.

Rounds of both kinds alternate, with the same prompts at the same times: arrivals are Poisson's. Jobs use the
preemptible key, fill their slots, and return as soon as they are admitted.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from bench.models import DEMO_MODEL
from gateway.api.admin import HEADER
from runtime.data_folder import DataFolder

_STOP_S = 30.0
_ANSWER_S = 60.0
# Token ids of the demo model that stand for text.
_FIRST_ID, _END_ID = 300, 4000
# Seconds until an agent that was refused or preempted asks again.
_AGAIN_S = 0.25
_SETTLED_S = 1.0


@dataclass(frozen=True, slots=True)
class Work:
    """The owner's requests of a round, and the jobs beside them."""

    requests: int
    rate_per_s: float
    prompt_tokens: int
    tokens: int
    slots: int
    job_prompt_tokens: int
    job_tokens: int


@dataclass(slots=True)
class RecordingSink:
    """The results of one kind of round, in seconds.

    `present` are the running jobs at each of the owner's arrivals.
    """

    first_s: list[float] = field(default_factory=list)
    present: list[int] = field(default_factory=list)
    preempted: int = 0
    refused: int = 0
    job_events: int = 0
    seconds: float = 0.0


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench owner", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4, help="of each kind")
    parser.add_argument("--requests", type=int, default=40, help="of the owner, in a round")
    parser.add_argument("--rate", type=float, default=2.0, help="the owner's requests a second")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--job-prompt-tokens", type=int, default=64)
    parser.add_argument("--job-tokens", type=int, default=400)
    parser.add_argument("--model", type=Path, default=DEMO_MODEL)
    given = parser.parse_args(arguments)
    work = Work(
        given.requests,
        given.rate,
        given.prompt_tokens,
        given.tokens,
        given.slots,
        given.job_prompt_tokens,
        given.job_tokens,
    )
    with (
        tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder,
        _gateway(folder, given.model, work) as at,
    ):
        asyncio.run(_measure(at, given.rounds, work))


@dataclass(frozen=True, slots=True)
class Endpoint:
    base_url: str
    model: str
    key: str
    preemptible_key: str


@contextmanager
def _gateway(folder: str, model: Path, work: Work) -> Iterator[Endpoint]:
    """Run `millrace up` with two nodes that each hold half of the model."""
    command = [sys.executable, "-m", "gateway", "up", "--json", "--port", "0", "--data-dir", folder]
    environment = {
        "MILLRACE_LOG__LEVEL": "error",
        "MILLRACE_LOG__ACCESS": "off",
        "MILLRACE_CLUSTER__SLOTS": str(work.slots),
        "MILLRACE_CLUSTER__STAGES_MIN": "2",
    }
    process = subprocess.Popen(
        [*command, "--model", str(model), "--nodes", "2"],
        stdout=subprocess.PIPE,
        env=os.environ | environment,
        start_new_session=True,
        text=True,
    )
    try:
        assert process.stdout
        facts: dict[str, Any] = json.loads(process.stdout.readline() or '{"base_url": ""}')
        if not facts["base_url"]:
            sys.exit("the gateway did not start")
        running = DataFolder(Path(folder)).read_running()
        assert running
        root = facts["base_url"].removesuffix("/v1")
        headers = {HEADER: running["admin_token"]}
        made = (
            httpx.post(f"{root}/admin/preemptible-key", headers=headers, trust_env=False).raise_for_status().json()
        )
        yield Endpoint(facts["base_url"], model.name, facts["api_key"], made["key"])
    finally:
        _stop(process)


def _stop(process: "subprocess.Popen[str]") -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def _measure(at: Endpoint, rounds: int, work: Work) -> None:
    await _round(at, work, RecordingSink(), "warm-up", has_jobs=False)
    await _round(at, work, RecordingSink(), "warm-up", has_jobs=True)
    print(f"{os.cpu_count()} cores, {work}")
    print("| round | idle p50 ms | p95 | with jobs p50 ms | p95 | p50 ratio | p95 ratio | jobs there | load |")
    print("|---|---|---|---|---|---|---|---|---|")
    idle, shared, ratios = RecordingSink(), RecordingSink(), []
    for number in range(1, rounds + 1):
        alone, beside = RecordingSink(), RecordingSink()
        # The kind that goes first in one round goes second in the next.
        for has_jobs in (number % 2 == 0, number % 2 == 1):
            await _round(at, work, beside if has_jobs else alone, f"round {number}", has_jobs=has_jobs)
        ratios.append((_p50(beside) / _p50(alone), _p95(beside) / _p95(alone)))
        _print_row(str(number), alone, beside, ratios[-1])
        for all_, one in ((idle, alone), (shared, beside)):
            all_.first_s += one.first_s
            all_.present += one.present
            all_.preempted += one.preempted
            all_.refused += one.refused
            all_.job_events += one.job_events
            all_.seconds += one.seconds
    _print_row("all", idle, shared, (_p50(shared) / _p50(idle), _p95(shared) / _p95(idle)))
    middle = [statistics.median(ratio) for ratio in zip(*ratios, strict=True)]
    print(f"\nMedian of the rounds' ratios: p50 {middle[0]:.2f}, p95 {middle[1]:.2f}.")
    print(
        f"Jobs: {shared.preempted} preempted, {shared.refused} refused, "
        f"{shared.job_events / shared.seconds:.0f} events a second sold beside the owner."
    )


def _print_row(name: str, alone: RecordingSink, beside: RecordingSink, ratio: tuple[float, float]) -> None:
    figures = [1000 * seconds for seconds in (_p50(alone), _p95(alone), _p50(beside), _p95(beside))]
    cells = [f"{figure:.1f}" for figure in figures] + [f"{each:.2f}" for each in ratio]
    there = statistics.mean(beside.present)
    print(f"| {name} | {' | '.join(cells)} | {there:.1f} | {os.getloadavg()[0]:.1f} |", flush=True)


def _p50(heard: RecordingSink) -> float:
    return statistics.median(heard.first_s)


def _p95(heard: RecordingSink) -> float:
    return statistics.quantiles(heard.first_s, n=20, method="inclusive")[18]


async def _round(at: Endpoint, work: Work, heard: RecordingSink, seed: str, *, has_jobs: bool) -> None:
    """Send the owner's requests at their times, which both kinds of a round share."""
    chance, under_way = random.Random(seed), [0]
    began_s = time.perf_counter()
    places = max(1, work.slots - 1) if has_jobs else 0  # the cluster keeps one back
    preemptible_jobs = [asyncio.create_task(_preemptible(at, work, heard, under_way)) for _ in range(places)]
    await asyncio.sleep(_SETTLED_S)
    asking: list[asyncio.Task[None]] = []
    for _ in range(work.requests):
        await asyncio.sleep(chance.expovariate(work.rate_per_s))
        heard.present.append(under_way[0])
        asking.append(asyncio.create_task(_own(at, work, heard, _prompt(chance, work.prompt_tokens))))
    await asyncio.gather(*asking)
    for job in preemptible_jobs:
        job.cancel()
    ended = await asyncio.gather(*preemptible_jobs, return_exceptions=True)
    for end in ended:
        if isinstance(end, Exception):
            raise end
    heard.seconds += time.perf_counter() - began_s


async def _own(at: Endpoint, work: Work, heard: RecordingSink, prompt: list[int]) -> None:
    sent_s = time.perf_counter()
    has_begun = False
    async with asyncio.timeout(_ANSWER_S), _request(at, at.key, prompt, work.tokens) as lines:
        async for line in lines:
            if b'"error"' in line:
                raise RuntimeError(line.decode())
            if not has_begun and line.startswith(b"data:") and b'"text":""' not in line:
                heard.first_s.append(time.perf_counter() - sent_s)
                has_begun = True


async def _preemptible(at: Endpoint, work: Work, heard: RecordingSink, under_way: list[int]) -> None:
    """Send one request after the other, while the round lasts."""
    chance = random.Random()
    while True:
        is_in = is_over = False
        async with _request(
            at, at.preemptible_key, _prompt(chance, work.job_prompt_tokens), work.job_tokens
        ) as lines:
            try:
                async for line in lines:
                    if not is_in and line.startswith(b"data:"):
                        is_in = True
                        under_way[0] += 1
                    heard.job_events += line.startswith(b"data:")
                    is_preempted, is_refused = b'"preempted"' in line, b'"preemptible_not_now"' in line
                    heard.preempted += is_preempted
                    heard.refused += is_refused
                    is_over = is_over or is_preempted or is_refused
                    if b'"error"' in line and not (is_preempted or is_refused):
                        raise RuntimeError(line.decode())
            finally:
                under_way[0] -= is_in
        if is_over:
            await asyncio.sleep(_AGAIN_S)


@asynccontextmanager
async def _request(at: Endpoint, key: str, prompt: list[int], tokens: int) -> AsyncIterator[asyncio.StreamReader]:
    """Yield a streamed completion on its own connection, line by line, without the cost of a client library."""
    body = json.dumps(
        {"model": at.model, "prompt": prompt, "max_tokens": tokens, "temperature": 1.0, "stream": True}
    ).encode()
    url = urlsplit(at.base_url)
    head = (
        f"POST {url.path}/completions HTTP/1.1\r\nhost: {url.netloc}\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        writer.write(head.encode() + body)
        yield reader
    finally:
        writer.close()


def _prompt(chance: random.Random, tokens: int) -> list[int]:
    return [chance.randrange(_FIRST_ID, _END_ID) for _ in range(tokens)]

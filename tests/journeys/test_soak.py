"""Many callers at once, some of whom hang up: all others are answered, nothing leaks. Then the gateway is killed."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.clusters import DEMO_MODEL
from tests.gateways import PATIENCE_S, Gateway, running_gateway, until

MODEL = DEMO_MODEL.name
# Forty at a time are more than there are slots. Stages keep memory for each size of step that they have seen.
WARMING, WARMING_LONG = 80, 1000


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Its agent, stage, coordinator and renderer start as users start them, which takes 8 s of CPU."""
    with running_gateway(tmp_path_factory.mktemp("soak"), nodes=1, from_templates=False) as gateway:
        yield gateway


def test_callers_come_and_go(gateway: Gateway) -> None:
    come_and_go(gateway, 80)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_thousands_of_callers_come_and_go(tmp_path: Path) -> None:
    with running_gateway(tmp_path, nodes=2, from_templates=False) as gateway:
        come_and_go(gateway, 5000)


def come_and_go(gateway: Gateway, requests: int) -> None:
    # Until every slot is in use: slots are kept for prompts that begin alike.
    warming = WARMING_LONG if requests > WARMING_LONG else WARMING
    asyncio.run(_crowd(gateway, warming))
    # The admin's pages are loaded when first asked for, and stay.
    until(lambda: _rows(gateway, warming))
    idle = _memory_bytes(gateway)
    answered = asyncio.run(_crowd(gateway, requests))
    assert answered > requests // 3
    until(lambda: "millrace_in_flight 0.0" in gateway.http().get("/metrics").text or None)
    # The coordinator checks its slots and blocks whenever it is idle, and would have ended by now.
    asyncio.run(asyncio.sleep(2))
    assert gateway.openai().completions.create(model=MODEL, prompt="The end", max_tokens=3).usage
    assert gateway.admin("/admin/cluster")["epoch"] == 1
    rows = until(lambda: _rows(gateway, min(1000, requests + warming + 1)))
    assert not [row for row in rows if row["outcome"] == "failed"]
    assert _memory_bytes(gateway) - idle < 20e6 + 4e3 * requests


def test_a_killed_gateway_takes_its_nodes_along_and_keeps_its_ledger(gateway: Gateway) -> None:
    """It kills the gateway that the other test of this file needs, so it comes last."""
    family = gateway.processes()
    # The gateway, the process of the chat template, the coordinator, an agent and its stage.
    assert len(family) == 5
    raw = gateway.openai().chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": "Hello"}], max_tokens=4
    )
    booked = gateway.record(raw.headers["x-request-id"])
    first_key = gateway.api_key
    gateway.process.kill()
    _, alive = psutil.wait_procs(family, PATIENCE_S)
    assert not alive
    # The ledger and the keys are what it keeps: it needs no machine for them.
    with running_gateway(gateway.folder, model=None) as again:
        assert again.record(raw.headers["x-request-id"]) == booked
        assert again.api_key != first_key
        for key in (first_key, again.api_key):
            assert list(again.openai(key).models.list()) == []


def _rows(gateway: Gateway, count: int) -> list[dict[str, Any]] | None:
    """The request log once it has so many rows: it is written behind the answers' backs."""
    rows: list[dict[str, Any]] = gateway.admin("/admin/requests?limit=1000")
    assert len(rows) <= count
    return rows if len(rows) == count else None


async def _crowd(gateway: Gateway, requests: int) -> int:
    """Forty callers at a time; how many got their whole answer."""
    chance = random.Random(requests)
    gate = asyncio.Semaphore(40)
    limits = httpx.Limits(max_connections=60)
    headers = {"authorization": f"Bearer {gateway.api_key}"}
    async with httpx.AsyncClient(base_url=gateway.root, headers=headers, timeout=120, limits=limits) as client:
        ends = await asyncio.gather(
            *(_call(client, gate, chance.random(), chance.randint(1, 40)) for _ in range(requests))
        )
    return sum(ends)


async def _call(client: httpx.AsyncClient, gate: asyncio.Semaphore, mood: float, tokens: int) -> bool:
    body = {"model": MODEL, "prompt": "word " * tokens, "max_tokens": tokens, "stream": True, "ignore_eos": True}
    async with gate, client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        last = ""
        async for line in answer.aiter_lines():
            last = line or last
            if mood < 0.4 and "text" in line:
                return False
    return last == "data: [DONE]"


def _memory_bytes(gateway: Gateway) -> int:
    return sum(
        process.memory_info().rss for process in gateway.processes() if process.status() != psutil.STATUS_ZOMBIE
    )

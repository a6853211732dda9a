"""Whoever hangs up before the first word: who pays the provider for the prompt, and how often nobody may."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import select

from accounting import chart
from accounting.ledger.balances import balance
from accounting.metering.recharge import mischarges
from accounting.money import Price
from accounting.tables import usage_table
from gateway.billing.metering.factory import write_prices
from gateway.quota import Quota
from gateway.requests.batch_jobs import lifecycle as life
from gateway.settings import BatchesSettings, CloudSettings
from runtime.hang_ups import UNPAID_MAX
from tests.gateway.http.edges import DONE, SSE, Backend, Edge, Writer, backend, chunk, until, whole
from tests.gateway.requests.roads import ANSWER, receive, road, send, with_paid_lane
from tests.gateway.requests.talkers import CREDITS, PRICE, TIME_S, spent, spoken

pytestmark = pytest.mark.anyio

# A nano-dollar a token, also of the prompt.
PROMPT_PRICE = replace(PRICE, price=Price(10**6, 10**6, 10**6))
PROMPT = [{"role": "user", "content": "word " * 3600}]
PROMPT_TOKENS = 4504
"""Four bytes a token, and four tokens a message."""
TIMES = 40


class Slow:
    """A provider that begins to answer when it is told, and says its first word when it is told that, too."""

    def __init__(self) -> None:
        self.begins, self.speaks = asyncio.Event(), asyncio.Event()

    async def __call__(self, _: bytes, writer: Writer) -> None:
        await self.begins.wait()
        writer.write(SSE + chunk(spoken(text="")))
        await writer.drain()
        await self.speaks.wait()
        writer.write(chunk(spoken(finish="stop")) + chunk(DONE) + b"0\r\n\r\n")


async def own(_: bytes, writer: Writer) -> None:
    writer.write(whole(ANSWER))


@asynccontextmanager
async def gateway(folder: Path, slow: Slow) -> AsyncIterator[tuple[Edge, Backend]]:
    async with (
        backend(own) as server,
        backend(slow) as provider,
        road(folder, server.base_url) as started,
        with_paid_lane(
            started, provider.base_url, "paid", price=PROMPT_PRICE, credit_nano=CREDITS, patience_s=TIME_S
        ) as running,
    ):
        write_prices(running.services.lanes, running.services.request_log._write)
        yield running, provider
        assert await running.services.ledger.look(mischarges) == []


async def hang_up_before_it_begins(running: Edge, provider: Backend, times: int) -> None:
    """So many at once, each as soon as the provider has the prompt."""
    before = len(provider.requests)
    sent = [await send(running, model="paid", stream=True, messages=PROMPT) for _ in range(times)]
    await until(lambda: len(provider.requests) == before + times, TIME_S)
    for _, writer in sent:
        writer.close()
    await until(lambda: running.services.admission.in_flight == 0, TIME_S)


async def rows(running: Edge) -> list[tuple[Any, ...]]:
    columns = usage_table.c
    query = select(
        columns.outcome, columns.count_source, columns.prompt_tokens, columns.charge_nano, columns.cost_nano
    )
    query = query.where(columns.lane == "cloud").order_by(columns.started_ns)
    return [tuple(row) for row in await running.services.ledger.look(lambda session: session.execute(query).all())]


async def variance_nano(running: Edge) -> int:
    """What providers are owed that nobody pays."""
    ledger = running.services.ledger
    account = await ledger.look(lambda session: balance(session, chart.EXPENSE_BURST_VARIANCE))
    return account.posted_nano


async def test_once_the_provider_has_begun_the_prompt_is_paid(tmp_path: Path) -> None:
    slow = Slow()
    slow.begins.set()
    async with gateway(tmp_path, slow) as (running, provider):
        for _ in range(TIMES):
            reader, writer = await send(running, model="paid", stream=True, messages=PROMPT)
            await asyncio.wait_for(reader.readuntil(b'"delta"'), TIME_S)
            writer.close()
            await until(lambda: running.services.admission.in_flight == 0, TIME_S)
        assert len(provider.requests) == TIMES
        assert await spent(running) == TIMES * PROMPT_TOKENS
        expected = ("interrupted", "characters", PROMPT_TOKENS, PROMPT_TOKENS, PROMPT_TOKENS)
        assert await rows(running) == [expected] * TIMES
        assert await variance_nano(running) == 0


async def test_before_it_begins_prompts_count_against_limits_and_are_bounded(tmp_path: Path) -> None:
    slow = Slow()
    async with gateway(tmp_path, slow) as (running, provider):
        services = running.services
        caller = services.keys.find(running.key)
        assert caller
        for measure in ("spend", "tokens"):
            services.directory.quotas.set(Quota(f"key:{caller.key_id}", measure, CREDITS, "day"))
        caller = services.keys.find(running.key)
        assert caller
        plan = services.limits.plans.of(caller, "paid")
        (budget,), (tokens,) = plan.spend, plan.tokens
        await hang_up_before_it_begins(running, provider, UNPAID_MAX)
        assert await spent(running) == 0
        expected = ("interrupted", "characters", PROMPT_TOKENS, 0, PROMPT_TOKENS)
        assert await rows(running) == [expected] * UNPAID_MAX
        unpaid_nano = UNPAID_MAX * PROMPT_TOKENS
        assert await variance_nano(running) == unpaid_nano
        assert (budget.taken, budget.held, tokens.taken, tokens.held) == (unpaid_nano, 0, unpaid_nano, 0)
        refused = await receive(await send(running, model="paid", stream=True, messages=PROMPT), TIME_S)
        assert (refused.status, refused.error["code"]) == (429, "too_many_hang_ups")
        assert 0 < int(refused.headers["retry-after"]) <= 60
        assert "local machines" in refused.error["message"]
        assert len(provider.requests) == UNPAID_MAX
        assert (await receive(await send(running, model="m"), TIME_S)).status == 200


async def test_those_on_their_way_beyond_the_bound_are_paid(tmp_path: Path) -> None:
    async with gateway(tmp_path, Slow()) as (running, provider):
        await hang_up_before_it_begins(running, provider, UNPAID_MAX + 4)
        assert await spent(running) == 4 * PROMPT_TOKENS
        assert await variance_nano(running) == UNPAID_MAX * PROMPT_TOKENS


async def test_a_user_who_cancels_a_batch_is_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the provider has is left when the patience with a cancelled batch ends."""
    monkeypatch.setattr(life, "_PATIENCE_S", 0.1)
    asked = UNPAID_MAX + 4
    price = {"prompt_usd_per_mtok": "1", "completion_usd_per_mtok": "1", "max_output_tokens": 100}
    async with backend(Slow()) as provider:
        model = {"model": "openai/slow", "key": "KEY", "base_url": provider.base_url} | price
        keys = tmp_path / "cloud.keys"
        keys.write_text("KEY=sk-test\n")
        keys.chmod(0o600)
        cloud = CloudSettings(models={"slow": model}, keys_file=keys)
        batches = BatchesSettings(concurrency=asked)
        async with road(tmp_path / "data", cloud=cloud, batches=batches) as running:
            await running.services.ledger.credit("c1", "owner", 10**9, "test")
            body = {"model": "slow", "messages": PROMPT, "max_tokens": 10}
            lines = [
                {"custom_id": f"{n}", "method": "POST", "url": "/v1/chat/completions", "body": body}
                for n in range(asked)
            ]
            content = "".join(json.dumps(line) + "\n" for line in lines).encode()
            url = f"http://127.0.0.1:{running.port}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key=running.key, max_retries=0) as client:
                file = await client.files.create(file=("lines.jsonl", content), purpose="batch")
                batch = await client.batches.create(
                    input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
                )
                await until(lambda: len(provider.requests) == asked, TIME_S)
                await client.batches.cancel(batch.id)
                async with asyncio.timeout(TIME_S):
                    while (await client.batches.retrieve(batch.id)).status != "cancelled":
                        await asyncio.sleep(0.05)
            await until(lambda: running.services.bookkeeper.waiting == 0, TIME_S)
            told = await rows(running)
            nano = 1000 * PROMPT_TOKENS
            assert sorted(row[3:] for row in told) == [(0, nano)] * UNPAID_MAX + [(nano, nano)] * 4
            assert await variance_nano(running) == UNPAID_MAX * nano

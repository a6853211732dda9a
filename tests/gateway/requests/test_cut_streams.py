"""Streams that end early, as OpenAI's client sees them, from a provider through the cloud worker."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionChunk
from sqlalchemy import select

from accounting.tables import usage_table
from gateway.settings import CloudSettings
from tests.fakes import anthropic_provider
from tests.fakes import openai_provider as provider
from tests.gateway.http.edges import Edge
from tests.gateway.requests.roads import nothing_is_left, road
from tests.openai_schemas import check

pytestmark = pytest.mark.anyio

# A thousand nano-dollars a token.
COMPLETION_USD = "1"
TOKEN_NANO = 1000
WORD = "tick "
TIME_S = 60.0


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Edge]:
    keys = tmp_path / "cloud.keys"
    keys.write_text(f"OPENAI_KEY={provider.KEY}\n")
    keys.chmod(0o600)
    with provider.openai_provider() as server:
        model = {
            "model": "openai/fake.many-chunks",
            "key": "OPENAI_KEY",
            "base_url": f"{server.origin}/v1",
            "prompt_usd_per_mtok": "0",
            "completion_usd_per_mtok": COMPLETION_USD,
            "max_output_tokens": 100_000,
        }
        cloud = CloudSettings(models={"ticker": model}, keys_file=keys)
        async with road(tmp_path / "data", cloud=cloud) as edge:
            yield edge


async def ask(running: Edge, **fields: Any) -> list[ChatCompletionChunk]:
    return await ask_for(running, "ticker", **fields)


async def ask_for(running: Edge, model: str, **fields: Any) -> list[ChatCompletionChunk]:
    """What came of it."""
    chunks: list[ChatCompletionChunk] = []
    async with openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{running.port}/v1", api_key=running.key, max_retries=0, timeout=TIME_S
    ) as client:
        stream = await client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "Hi"}], stream=True, **fields
        )
        with contextlib.suppress(openai.APIError):
            async for chunk in stream:
                chunks.append(chunk)  # noqa: PERF401 - what came before an error counts
    return chunks


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


async def usage_of(running: Edge) -> dict[str, Any]:
    await nothing_is_left(running, TIME_S)
    ledger = running.services.ledger
    async with asyncio.timeout(TIME_S):
        while running.services.bookkeeper.waiting or (await ledger.balance("owner")).held_nano:
            await asyncio.sleep(0.1)
    newest = select(usage_table).order_by(usage_table.c.started_ns.desc()).limit(1)
    return dict((await ledger.look(lambda session: session.execute(newest).one()))._mapping)


async def test_the_official_client_reads_the_end_without_an_error(running: Edge) -> None:
    await running.services.ledger.credit("c1", "owner", 100 * TOKEN_NANO, "test")
    chunks = await ask(running, stream_options={"include_usage": True})
    for chunk in chunks:
        check("CreateChatCompletionStreamResponse", json.loads(chunk.model_dump_json(exclude_unset=True)))
    text, last = text_of(chunks), chunks[-2]
    assert last.choices[0].finish_reason == "length"
    assert (last.model_extra or {})["millrace"] == {"ended": "credits_exhausted"}
    used = await usage_of(running)
    tokens = -(-len(text) // 4)
    assert chunks[-1].usage
    assert chunks[-1].usage.completion_tokens == used["completion_tokens"] == tokens
    assert (used["outcome"], used["charge_nano"]) == ("interrupted", tokens * TOKEN_NANO)
    assert 100 - 16 < tokens <= 100
    assert (await running.services.ledger.balance("owner")).posted_nano == (100 - tokens) * TOKEN_NANO


async def test_with_enough_it_is_whole(running: Edge) -> None:
    await running.services.ledger.credit("c1", "owner", 100_000 * TOKEN_NANO, "test")
    chunks = await ask(running)
    assert text_of(chunks) == WORD * 400
    used = await usage_of(running)
    assert (used["outcome"], used["completion_tokens"], used["count_source"]) == ("complete", 400, "upstream")


COMPLETE = ("openai/fake.no-usage", "openai/fake.ends-uncounted", "openai/fake.counts-ahead")
CUT = ("openai/fake.aborts-uncounted", "openai/fake.aborts", "openai/fake.truncates", "anthropic/fake.truncates")


async def test_a_stream_without_its_usage_is_never_booked_as_the_providers_count(tmp_path: Path) -> None:
    keys = tmp_path / "cloud.keys"
    keys.write_text(f"OPENAI_KEY={provider.KEY}\nANTHROPIC_KEY={anthropic_provider.KEY}\n")
    keys.chmod(0o600)
    with provider.openai_provider() as openai_server, anthropic_provider.anthropic_provider() as anthropic_server:
        urls = {"openai": f"{openai_server.origin}/v1", "anthropic": anthropic_server.origin}
        models = {}
        for name in (*COMPLETE, *CUT):
            kind = name.partition("/")[0]
            usd = {"prompt_usd_per_mtok": "0", "completion_usd_per_mtok": COMPLETION_USD}
            key = {"key": f"{kind.upper()}_KEY", "base_url": urls[kind]}
            models[name] = {"model": name, "max_output_tokens": 100, **usd, **key}
        cloud = CloudSettings(models=models, keys_file=keys)
        async with road(tmp_path / "data", cloud=cloud) as edge:
            await edge.services.ledger.credit("c1", "owner", 10**6 * TOKEN_NANO, "test")
            for name in (*COMPLETE, *CUT):
                for fields in ({"stream_options": {"include_usage": True}}, {}):
                    chunks = await ask_for(edge, name, **fields)
                    tokens = -(-len(text_of(chunks)) // 4)
                    used = await usage_of(edge)
                    assert tokens > 0
                    assert (used["count_source"], used["completion_tokens"]) == ("characters", tokens), name
                    assert (used["outcome"] == "complete") is (name in COMPLETE), name
                    told = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage]
                    assert told == ([tokens] if fields and name in COMPLETE else []), name

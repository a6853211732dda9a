"""Answers that must be JSON of a schema, against the model's own preference and across losses."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from cluster.errors import RequestInvalid
from cluster.generation import ChatPrompt, Constraint, GenerateRequest, Limits, Sampling, TokenEvent
from tests.cluster.test_failover import nothing_is_held, process_of, settled
from tests.clusters import Cluster, running_cluster
from tests.examples import examples

pytestmark = pytest.mark.anyio

CARD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["cat", "dog", "old man"]},
        "partners": {"type": "array", "items": {"$ref": "#/$defs/partner"}, "minItems": 2, "maxItems": 3},
    },
    "required": ["name", "age", "kind", "partners"],
    "additionalProperties": False,
    "$defs": {
        "partner": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "pattern": "^[A-Z][a-z]{2,8}$"},
                "good": {"type": "boolean"},
            },
            "required": ["name", "good"],
            "additionalProperties": False,
        }
    },
}
PROMPTS = [f"Tell me about {who} and their partners." for who in ("a cat", "é 世界", "1 2 3", "Tom", "the sea")]


async def ask(
    cluster: Cluster,
    name: str,
    prompt: str,
    *,
    constraint: Constraint | None = None,
    sampling: Sampling | None = None,
    n: int = 1,
    begun: asyncio.Event | None = None,
) -> list[str]:
    request = GenerateRequest(
        id=name,
        prompt=ChatPrompt([{"role": "user", "content": prompt}]),
        sampling=sampling or Sampling(temperature=0.0),
        limits=Limits(max_tokens=400),
        constraint=constraint or Constraint(schema=CARD, is_strict=True),
        n=n,
    )
    texts, finishes = [""] * n, [""] * n
    async for event in cluster.controller.chat.generate(request):
        if isinstance(event, TokenEvent):
            texts[event.choice] += event.text
            finishes[event.choice] = event.finish or ""
            if begun and len(texts[0]) > 20:
                begun.set()
    assert finishes == ["stop"] * n, texts
    return texts


def is_valid(text: str) -> bool:
    Draft202012Validator(CARD).validate(json.loads(text))
    return True


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.slow), 2])
async def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Cluster]:
    stages: int = request.param
    async with running_cluster(tmp_path_factory.mktemp("cluster"), nodes=stages, slots=8) as running:
        yield running


async def test_every_answer_follows_its_schema(cluster: Cluster) -> None:
    """Twelve or twenty requests at once in eight slots, greedy and sampled, with drafts, beside unconstrained ones."""
    prompts = PROMPTS[: examples(3, len(PROMPTS))]
    greedy = [await ask(cluster, f"calm-{at}", prompt) for at, prompt in enumerate(prompts)]
    samplings = [Sampling(temperature=0.0), Sampling(temperature=0.0)]
    samplings += [Sampling(temperature=t, seed=7, presence_penalty=1.0, logprobs=2) for t in (0.7, 1.5)]
    free = [asyncio.create_task(cluster.ask(prompt, max_tokens=100)) for prompt in prompts]
    texts = await asyncio.gather(
        *(
            ask(cluster, f"{at}-{number}", prompt, sampling=sampling, n=1 + (number == 3))
            for at, prompt in enumerate(prompts)
            for number, sampling in enumerate(samplings)
        )
    )
    assert all(is_valid(text) for answer in texts for text in answer)
    assert texts[0 :: len(samplings)] == texts[1 :: len(samplings)] == greedy
    assert all(answer.done.completion_tokens == 100 for answer in await asyncio.gather(*free))
    await nothing_is_held(cluster)


@pytest.mark.slow
async def test_a_lost_stage_and_a_lost_coordinator_change_nothing(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, nodes=3, stages=2, goal="latency") as cluster:
        expected = [await ask(cluster, f"calm-{at}", prompt) for at, prompt in enumerate(PROMPTS)]
        for role, at in (("stage", 1), ("coordinator", 0)):
            await settled(cluster, 3)
            begun = asyncio.Event()
            running = [
                asyncio.create_task(ask(cluster, f"{role}-{number}", prompt, begun=begun))
                for number, prompt in enumerate(PROMPTS)
            ]
            await begun.wait()
            process_of(cluster, at, role).kill()
            assert await asyncio.gather(*running) == expected
        await nothing_is_held(cluster)


async def test_schemas_that_cannot_be_enforced_are_named(cluster: Cluster) -> None:
    """Schemas are refused before they wait if possible, and otherwise without harm to other requests."""
    refused: list[dict[str, Any]] = [
        {"type": "frob"},
        {"$ref": "http://example.org/schema"},
        {"type": "string", "pattern": "a" * 70_000},
        {"allOf": [{"type": "string", "pattern": f"^.*a.{{{at}}}$"} for at in range(14, 20)]},
        # This schema compiles, and proves too complex only during decoding.
        {"type": "integer", "multipleOf": 99_991, "minimum": 10**9},
    ]
    for at, schema in enumerate(refused):
        with pytest.raises(RequestInvalid) as caught:
            await ask(cluster, f"refused-{at}", "x", constraint=Constraint(schema=schema, is_strict=True))
        assert caught.value.param == "response_format", schema
    assert is_valid((await ask(cluster, "well", PROMPTS[0]))[0])
    await nothing_is_held(cluster)

"""Tokens of a real cluster equal the reference's, with any number of stages, alone or beside other requests."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
import transformers

from cluster.errors import ContextLengthExceeded, RequestInvalid
from cluster.generation import ChatPrompt, Sampling, TokenPrompt
from tests.clusters import DEMO_MODEL, Cluster, running_cluster

pytestmark = pytest.mark.anyio

TOKENS = 32
PROMPTS = ["The river", "Once upon a time there was", "1 2 3 4", "é 世界", "What is a gateway?" * 20]


@pytest.fixture(scope="module")
def reference() -> "transformers.LlamaForCausalLM":
    return transformers.LlamaForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO_MODEL)
    encoded = [tokenizer.encode(prompt, add_special_tokens=False) for prompt in PROMPTS]
    # One prompt of several prefill chunks, up to the context's last position.
    return [*encoded, (encoded[1] * 200)[:992]]


@pytest.fixture(scope="module")
def expected(reference: "transformers.LlamaForCausalLM", prompts: list[list[int]]) -> list[list[int]]:
    """The reference's own greedy continuation of every prompt."""
    return [generate(reference, ids, TOKENS) for ids in prompts]


@pytest.fixture(
    scope="module", params=[pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
)
async def cluster(
    request: pytest.FixtureRequest, expected: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Cluster]:
    assert expected  # Compute it before the cluster starts, because it would block the cluster's loop.
    stages: int = request.param
    async with running_cluster(tmp_path_factory.mktemp("cluster"), nodes=stages) as running:
        plan = running.controller.topology().plan
        assert plan
        assert len(plan.stages) == stages
        yield running


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


def generate(reference: "transformers.LlamaForCausalLM", ids: list[int], tokens: int) -> list[int]:
    with torch.inference_mode():
        output = reference.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return output[0, len(ids) :].tolist()  # type: ignore[no-any-return]


async def test_greedy_tokens_equal_transformers(
    cluster: Cluster, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """All requests run at once, so that prefill chunks and decoding share batches."""
    answers = await asyncio.gather(*(cluster.ask(TokenPrompt(ids), max_tokens=TOKENS) for ids in prompts))
    for ids, tokens, answer in zip(prompts, expected, answers, strict=True):
        assert answer.token_ids[0] == tokens
        assert answer.done.prompt_tokens == len(ids)
        assert answer.done.completion_tokens == TOKENS
        assert answer.finishes[0] == "length"


async def test_logprobs_equal_transformers(cluster: Cluster, reference: "transformers.LlamaForCausalLM") -> None:
    ids = transformers.AutoTokenizer.from_pretrained(DEMO_MODEL).encode(PROMPTS[1], add_special_tokens=False)
    answer = await cluster.ask(TokenPrompt(ids), sampling=Sampling(temperature=0.0, logprobs=3), max_tokens=8)
    tokens = [token for event in answer.events for token in getattr(event, "tokens", ())]
    with torch.inference_mode():
        logits = reference(torch.tensor([ids + answer.token_ids[0]])).logits[0]
    for at, token in enumerate(tokens):
        expected = torch.log_softmax(logits[len(ids) - 1 + at], -1)
        values, top = expected.topk(3)
        assert token.logprob == pytest.approx(float(expected[token.token_id]), abs=1e-4)
        assert [other.token_id for other in token.top] == top.tolist()
        assert [other.logprob for other in token.top] == pytest.approx(values.tolist(), abs=1e-4)


@pytest.mark.slow
async def test_a_seed_repeats_its_answer(cluster: Cluster) -> None:
    sampling = Sampling(temperature=2.0, top_p=0.95, seed=7, logprobs=0)
    first, second, company = await asyncio.gather(
        cluster.ask(PROMPTS[1], sampling=sampling),
        cluster.ask(PROMPTS[1], sampling=sampling),
        cluster.ask(PROMPTS[1], sampling=Sampling(temperature=2.0, top_p=0.95, seed=8, logprobs=0)),
    )
    assert first.token_ids == second.token_ids
    assert first.token_ids != company.token_ids


async def test_choices_differ_and_finish_each(cluster: Cluster) -> None:
    answer = await cluster.ask(
        PROMPTS[1], sampling=Sampling(temperature=2.0, seed=3, logprobs=0), n=3, max_tokens=12
    )
    assert len({tuple(ids) for ids in answer.token_ids.values()}) == 3
    assert set(answer.finishes) == {0, 1, 2}
    assert answer.done.completion_tokens == sum(len(ids) for ids in answer.token_ids.values())


async def test_stop_strings_end_the_text_before_them(cluster: Cluster) -> None:
    whole = (await cluster.ask(PROMPTS[1], max_tokens=40)).texts[0]
    stop = whole[len(whole) // 2 : len(whole) // 2 + 3]
    answer = await cluster.ask(PROMPTS[1], max_tokens=40, stop=[stop])
    assert answer.texts[0] == whole[: whole.index(stop)]
    assert answer.finishes[0] == "stop"


async def test_bad_requests_name_their_field(cluster: Cluster) -> None:
    with pytest.raises(ContextLengthExceeded, match="1024") as long:
        await cluster.ask(TokenPrompt([5] * 1024), max_tokens=None)
    assert long.value.param == "messages"
    with pytest.raises(ContextLengthExceeded) as greedy:
        await cluster.ask("a river", max_tokens=5000)
    assert greedy.value.param == "max_tokens"
    with pytest.raises(RequestInvalid) as empty:
        await cluster.ask("")
    assert empty.value.param == "prompt"


async def test_a_chat_ends_by_itself(cluster: Cluster) -> None:
    prompt = ChatPrompt([{"role": "user", "content": "Hello!"}])
    answer = await cluster.ask(prompt, max_tokens=None, ignore_eos=False)
    assert answer.finishes[0] == "stop"
    assert answer.texts[0].strip()
    assert "<|" not in answer.texts[0]


@pytest.mark.slow
async def test_bf16_gives_the_same_tokens_over_one_stage_and_two(tmp_path: Path) -> None:
    """Rows cross the link in the pinned dtype, so splitting the model changes nothing, even in half precision."""
    answers = []
    for nodes in (1, 2):
        async with running_cluster(tmp_path / str(nodes), nodes=nodes, precision="bf16") as cluster:
            plan = cluster.controller.topology().plan
            assert plan
            assert (len(plan.stages), plan.precision) == (nodes, "bf16")
            answers.append((await cluster.ask(PROMPTS[1], max_tokens=TOKENS)).token_ids[0])
    assert answers[0] == answers[1]
    assert len(set(answers[0])) > 5

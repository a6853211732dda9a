"""Logits to tokens: penalties and truncation as transformers computes them, draws that repeat and are fair."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from cluster.compute.sampler import Draw, Sampler
from cluster.generation import SampledToken, Sampling
from tests.examples import examples

VOCABULARY = 40


def draw(
    logits: torch.Tensor, sampling: Sampling, position: int = 7, history: list[int] | None = None
) -> SampledToken:
    sampler = Sampler(len(logits))
    sampler.open(0, sampling, history or [], 1)
    return sampler.sample(logits.unsqueeze(0), [Draw(0, position)])[0][0]


def random_logits(seed: int) -> torch.Tensor:
    return torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3


@settings(max_examples=examples(20, 60), deadline=None)
@given(
    seed=st.integers(0, 10_000),
    top_k=st.integers(0, VOCABULARY),
    top_p=st.floats(0, 1),
    min_p=st.floats(0, 1),
)
def test_truncation_keeps_what_transformers_keeps(seed: int, top_k: int, top_p: float, min_p: float) -> None:
    """Every drawn token is one that the reference's warpers leave in, applied in the same order."""
    logits = random_logits(seed)
    kept = logits.unsqueeze(0)
    if top_k:
        kept = TopKLogitsWarper(top_k)(None, kept)
    if top_p < 1:
        kept = TopPLogitsWarper(top_p)(None, kept)
    if min_p:
        kept = MinPLogitsWarper(min_p)(None, kept)
    allowed = set(torch.isfinite(kept[0]).nonzero().flatten().tolist())
    for position in range(20):
        sampling = Sampling(top_k=top_k, top_p=top_p, min_p=min_p, seed=seed + 1)
        assert draw(logits, sampling, position).token_id in allowed


def test_draws_follow_the_distribution() -> None:
    """Chi-squared over 20,000 draws: 9 degrees of freedom stay below 33.7 in 9,999 of 10,000 fair cases."""
    logits = torch.linspace(0, 2, 10)
    expected = torch.softmax(logits, -1) * 20_000
    counts = Counter(draw(logits, Sampling(seed=5), position).token_id for position in range(20_000))
    assert sum((counts[token] - float(e)) ** 2 / float(e) for token, e in enumerate(expected)) < 33.7


def test_seed_and_position_decide_the_draw() -> None:
    logits = torch.zeros(1000)
    first = [draw(logits, Sampling(seed=1), position).token_id for position in range(30)]
    assert first == [draw(logits, Sampling(seed=1), position).token_id for position in range(30)]
    assert first != [draw(logits, Sampling(seed=2), position).token_id for position in range(30)]
    assert len(set(first)) > 20


@pytest.mark.parametrize("temperature", [0.0, 1e-30])
def test_no_temperature_is_greedy(temperature: float) -> None:
    logits = random_logits(3)
    assert draw(logits, Sampling(temperature=temperature)).token_id == int(logits.argmax())


def test_repetition_penalty_is_that_of_transformers() -> None:
    logits, history = random_logits(4), [int(random_logits(4).argmax()), 3, 3, 5]
    expected = RepetitionPenaltyLogitsProcessor(1.8)(torch.tensor([history]), logits.unsqueeze(0).clone())
    sampling = Sampling(temperature=0.0, repetition_penalty=1.8)
    assert draw(logits, sampling, history=history).token_id == int(expected.argmax())


def test_presence_and_frequency_penalties_count_the_output_only() -> None:
    logits = torch.tensor([3.0, 2.9, 2.0, 1.0])
    # Token 0 is in the prompt (one token long) and twice in the output, token 1 once in the output.
    history = [0, 0, 0, 1]
    assert draw(logits, Sampling(temperature=0.0, frequency_penalty=0.5), history=history).token_id == 1
    assert draw(logits, Sampling(temperature=0.0, presence_penalty=2.0), history=[0, 0, 1]).token_id == 2
    assert draw(logits, Sampling(temperature=0.0, presence_penalty=2.0), history=[0]).token_id == 0


def test_logit_bias_moves_and_bans_tokens() -> None:
    logits = random_logits(6)
    best = int(logits.argmax())
    assert draw(logits, Sampling(temperature=0.0, logit_bias={best: -100.0})).token_id != best
    assert draw(logits, Sampling(temperature=0.0, logit_bias={11: 100.0})).token_id == 11
    assert draw(logits, Sampling(temperature=0.0, logit_bias={10**6: 100.0})).token_id == best


def test_logprobs_are_those_of_the_raw_logits() -> None:
    logits = random_logits(7)
    reference = torch.log_softmax(logits, -1)
    token = draw(logits, Sampling(temperature=0.3, logprobs=4, logit_bias={2: 5.0}))
    assert token.logprob == pytest.approx(float(reference[token.token_id]), abs=1e-5)
    values, ids = reference.topk(4)
    assert [other.token_id for other in token.top] == ids.tolist()
    assert [other.logprob for other in token.top] == pytest.approx(values.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.0, logprobs=3),
        Sampling(temperature=0.0),
        Sampling(seed=3),
        Sampling(seed=4, temperature=0.7, top_k=50, top_p=0.9, min_p=0.01, logprobs=2),
        Sampling(seed=5, presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.2, logit_bias={7: 3.0}),
    ],
)
def test_each_device_draws_the_same_tokens(sampling: Sampling, device: torch.device) -> None:
    logits = torch.randn(64, 4096, generator=torch.Generator().manual_seed(9)) * 3
    answers = []
    for rows in (logits, logits.to(device)):
        sampler = Sampler(logits.shape[1])
        for slot in range(len(rows)):
            sampler.open(slot, sampling, [slot, 5, 5, 9], 1)
        tokens = sampler.sample(rows, [Draw(slot, 4) for slot in range(len(rows))])
        answers.append([token for (token,) in tokens])
    for here, there in zip(*answers, strict=True):
        assert here.token_id == there.token_id
        assert here.logprob == pytest.approx(there.logprob, abs=1e-5)
        assert [other.token_id for other in here.top] == [other.token_id for other in there.top]

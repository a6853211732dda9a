"""The money hold: whatever a request may make a provider generate is paid for before it is sent."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.errors import AmountInvalid
from accounting.metering.prices import PricedModel
from accounting.money import Price
from gateway.dialects.openai import Kind, read_request
from gateway.errors import to_api_error
from gateway.lanes.allowance import FIRST_TOKENS, STEP_TOKENS_MAX, Allowance, allowance_of
from gateway.lanes.base import Call, Offer
from gateway.lanes.token_bounds import choices_of, output_bound
from gateway.requests.entry import tokens_max

PER_TOKEN_NANO = 1000
NO_PRICE = PricedModel("cloud", "fast", "test", Price(0, 0, 0))


def offer(max_output_tokens: int | None = None) -> Offer:
    price = Price(0, 0, PER_TOKEN_NANO * 10**6)
    priced = PricedModel("cloud", "fast", "test", price, "acme", max_output_tokens=max_output_tokens)
    return Offer("cloud", "fast", "fast", price=priced)


def call_of(kind: Kind, **fields: Any) -> Call:
    raw = json.dumps({"model": "fast"} | fields).encode()
    return Call("req_1", kind, read_request(kind, raw), raw)


def chat(**fields: Any) -> Call:
    return call_of("chat", messages=[{"role": "user", "content": "Hi"}], **fields)


def completion(prompt: Any, **fields: Any) -> Call:
    return call_of("completion", prompt=prompt, **fields)


def test_limits_on_tokens_reserve_every_choice() -> None:
    prompt_tokens = chat().prompt_tokens
    assert tokens_max(chat(max_tokens=50)) == prompt_tokens + 50
    assert tokens_max(chat(max_tokens=50, n=3)) == prompt_tokens + 150
    assert tokens_max(call_of("embedding", input=["a", "b"])) < 50


@pytest.mark.parametrize(
    ("call", "choices"),
    [
        (chat(), 1),
        (chat(n=3), 3),
        (completion("text", best_of=4, n=2), 4),
        (completion("text", n=5), 5),
        (completion(["one", "two"]), 2),
        (completion(["one", "two"], best_of=4), 8),
        (completion([1, 2, 3], n=2), 2),
        (completion([[1, 2], [3]], n=2), 4),
    ],
)
def test_every_answer_that_is_generated_counts(call: Call, choices: int) -> None:
    assert choices_of(call.generation) == choices


def test_the_output_is_bounded_by_the_request_then_the_model_then_us() -> None:
    assert output_bound(chat(max_tokens=7).generation, offer(100)) == 7
    assert output_bound(chat(max_completion_tokens=8).generation, offer(100)) == 8
    assert output_bound(chat().generation, offer(100)) == 100
    assert output_bound(chat().generation, offer()) == 4096
    assert output_bound(completion("text").generation, offer(100)) == 16


def allowed(call: Call, offer: Offer) -> Allowance:
    allowance = allowance_of(call, offer)
    assert allowance
    return allowance


def test_what_is_put_aside_covers_all_of_them() -> None:
    allowance = allowed(completion(["one", "two"], best_of=4, max_tokens=10), offer())
    assert allowance.amount_nano(allowance.first_tokens) == 2 * 4 * 10 * PER_TOKEN_NANO
    with pytest.raises(AmountInvalid) as refused:
        allowed(chat(max_tokens=10_000_000, n=128), offer()).amount_nano(10_000_000)
    answer = to_api_error(refused.value)
    assert (answer.status, answer.param) == (400, "max_tokens")


@pytest.mark.parametrize(
    ("fields", "first"),
    [
        ({"stream": True}, FIRST_TOKENS),
        ({"stream": True, "n": 3}, FIRST_TOKENS),
        ({}, 9000),
        ({"stream": True, "max_tokens": 7000}, 7000),
        ({"stream": True, "max_tokens": 7}, 7),
        # What it thinks it may not show.
        ({"stream": True, "reasoning_effort": "high"}, 9000),
        ({"stream": True, "thinking": {"type": "enabled"}}, 9000),
    ],
)
def test_a_stream_of_open_length_begins_with_a_little(fields: dict[str, Any], first: int) -> None:
    assert allowed(chat(**fields), offer(9000)).first_tokens == first


def test_however_it_is_spelt_thinking_is_asked_for() -> None:
    asked = chat(stream=True, thinking={"type": "enabled"})
    raw = asked.raw.replace(b"thinking", b"\\u0074hinking")
    spelt = Call("r", "chat", read_request("chat", raw), raw)
    assert allowed(spelt, offer(9000)).first_tokens == 9000


def test_models_that_think_unseen_are_paid_for_whole() -> None:
    thinking = replace(offer(9000), price=replace(offer(9000).price or NO_PRICE, reasons=True))
    assert allowed(chat(stream=True), thinking).first_tokens == 9000
    assert not allowed(chat(stream=True, max_tokens=9000), thinking).less_tokens(9000, 10**12)


def test_steps_double_and_stay() -> None:
    allowance, steps = allowed(chat(stream=True), offer(20_000)), [FIRST_TOKENS]
    while steps[-1] < allowance.tokens_max:
        steps.append(allowance.next_tokens(steps[-1]))
    assert steps == [512, 1024, 2048, 4096, 8192, 12_288, 16_384, 20_000]
    assert max(after - before for before, after in pairwise(steps)) == STEP_TOKENS_MAX


@given(
    prompt=st.integers(0, 10**6),
    completion=st.integers(0, 10**9),
    choices=st.integers(1, 128),
    prompt_tokens=st.integers(0, 10**5),
    amount=st.integers(0, 10**12),
)
def test_what_an_amount_pays_for_is_within_it(
    prompt: int, completion: int, choices: int, prompt_tokens: int, amount: int
) -> None:
    allowance = Allowance(Price(prompt, 0, completion), prompt_tokens, 10_000, choices, grows=True, is_open=True)
    tokens = allowance.tokens_within(amount)
    assert tokens == 0 or allowance.amount_nano(tokens) <= amount
    assert tokens == allowance.tokens_max or allowance.amount_nano(tokens + 1) > amount
    less = allowance.less_tokens(4096, amount)
    assert less == 0 or (less < 4096 and allowance.amount_nano(less) <= amount)

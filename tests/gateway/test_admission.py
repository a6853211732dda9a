"""The money hold: whatever a request may make a provider generate is paid for before it is sent."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from accounting.errors import AmountInvalid
from accounting.metering.prices import PricedModel
from accounting.money import Price
from gateway.database import open_engine, read_sessions, write_sessions
from gateway.errors import to_api_error
from gateway.identity.caller import Caller
from gateway.journey.serve import _tokens_max
from gateway.lanes.base import Call, Offer
from gateway.limits.admission import choices_of, output_bound, place_hold
from gateway.openai import Kind, read_request
from gateway.records.books import Books

PER_TOKEN_NANO = 1000
CALLER = Caller("key-1", "mr-1", "ann", "lab", frozenset({"cloud"}))


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
    assert _tokens_max(chat(max_tokens=50)) == prompt_tokens + 50
    assert _tokens_max(chat(max_tokens=50, n=3)) == prompt_tokens + 150
    assert _tokens_max(call_of("embedding", input=["a", "b"])) < 50


@pytest.fixture
def books(dsn: str) -> Iterator[Books]:
    engine = open_engine(dsn)
    yield Books(read_sessions(engine), write_sessions(engine))
    engine.dispose()


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


@pytest.mark.anyio
async def test_the_hold_covers_all_of_them(books: Books) -> None:
    books.start()
    try:
        await books.credit("c1", "ann", 10**9, "test")
        held = await place_hold(books, CALLER, completion(["one", "two"], best_of=4, max_tokens=10), offer())
        assert held
        assert held.amount_nano == 2 * 4 * 10 * PER_TOKEN_NANO
        with pytest.raises(AmountInvalid) as refused:
            await place_hold(books, CALLER, chat(max_tokens=10_000_000, n=128), offer())
    finally:
        await books.stop()
    answer = to_api_error(refused.value)
    assert (answer.status, answer.param) == (400, "max_tokens")

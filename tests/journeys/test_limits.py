"""Limits and credits of one gateway, over HTTP: a crowd is served exactly what it may be, and told why no more."""

import asyncio
from collections.abc import Iterator

import openai
import pytest

from tests import crowds
from tests.crowds import (
    DEAR,
    DEAR_HELD_NANO,
    DEAR_NANO,
    FREE,
    PAID,
    PAID_NANO,
    Replies,
    ask,
    crowd,
    crowd_while_held,
    new_key,
    order,
    question,
    usd,
)
from tests.fakes.counting_provider import TOKENS, CountingProvider, counting_provider
from tests.gateways import Gateway, running_gateway, until

CROWD = 120


@pytest.fixture(scope="module")
def provider() -> Iterator[CountingProvider]:
    with counting_provider() as provider:
        yield provider


@pytest.fixture(scope="module")
def gateway(provider: CountingProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("limits")
    settings = crowds.settings(provider, folder)
    with running_gateway(folder / "data", model=None, settings=settings) as gateway:
        gateway.cli("users", "add", "rich")
        gateway.cli("credit", "add", "1", "--user", "rich")
        until(lambda: ask(gateway, gateway.api_key, FREE).status == 200 or None)
        yield gateway


def ask_together(gateway: Gateway, key: str, model: str, size: int = CROWD) -> Replies:
    replies = asyncio.run(crowd([gateway], key, size, model))
    assert not replies.broken
    return replies


def test_requests_a_minute(gateway: Gateway) -> None:
    key = new_key(gateway, "requests", [{"measure": "requests", "amount": "20", "span": "minute"}])
    replies = ask_together(gateway, key, FREE)
    assert replies.statuses() == {200: 20, 429: CROWD - 20}
    for reply in replies.refused:
        assert reply.code == "rate_limit_exceeded"
        assert "limit of 20 requests a minute for this key" in reply.message
        assert 0 < int(reply.headers["retry-after"]) <= 61
        assert reply.headers["x-ratelimit-remaining-requests"] == "0"
    left = sorted(int(reply.headers["x-ratelimit-remaining-requests"]) for reply in replies.all)
    assert left[-1] <= 19
    with pytest.raises(openai.RateLimitError, match="20 requests a minute"):
        gateway.openai(key).chat.completions.create(**question(FREE))


def test_a_removed_limit_ends_at_once(gateway: Gateway) -> None:
    key = new_key(gateway, "removed")
    order(gateway, "PUT", "quotas", {"scope": "user:removed", "measure": "requests", "amount": "1", "span": "day"})
    assert [ask(gateway, key, FREE).status for _ in range(2)] == [200, 429]
    order(gateway, "DELETE", "quotas?scope=user:removed&measure=requests&span=day")
    assert [ask(gateway, key, FREE).status for _ in range(2)] == [200, 200]


def test_tokens_a_minute(gateway: Gateway) -> None:
    """What an answer came to counts, not what was reserved for it; so there is room for some more after it."""
    key = new_key(gateway, "tokens", [{"measure": "tokens", "amount": "500", "span": "minute"}])
    served = ask_together(gateway, key, FREE).served
    reply = ask(gateway, key, FREE)
    while reply.status == 200:
        assert reply.headers["x-ratelimit-limit-tokens"] == "500"
        served, reply = served + 1, ask(gateway, key, FREE)
    assert reply.status == 429
    assert "500 tokens a minute" in reply.message
    # A token for every byte of the question, at most, and the six that may come.
    assert 500 - (len(question(FREE)["messages"][0]["content"]) + 6) < served * TOKENS <= 500


def test_tokens_that_are_to_be_gone_on_with_count(gateway: Gateway) -> None:
    key = new_key(gateway, "resuming", [{"measure": "tokens", "amount": "500", "span": "minute"}])
    resume = {"resume": [{"token_ids": [1] * 500, "characters": 0}]}
    answer = gateway.http(key).post(
        "/v1/chat/completions", json=question(FREE) | {"stream": True, "millrace": resume}
    )
    assert (answer.status_code, "500 tokens a minute" in answer.text) == (429, True)


def test_requests_at_a_time(gateway: Gateway, provider: CountingProvider) -> None:
    key = new_key(gateway, "places", [{"measure": "concurrency", "amount": "7"}])
    asking = asyncio.run(crowd_while_held(provider, [gateway], key, CROWD, 7))
    assert asking.statuses() == {200: 7, 429: CROWD - 7}
    assert provider.at_once_most == 7
    assert all("7 requests at a time" in reply.message for reply in asking.refused)
    assert ask(gateway, key, FREE).status == 200


def test_a_budget_of_requests_that_cost_what_they_may(gateway: Gateway) -> None:
    n = 25
    limit = {"measure": "spend", "amount": usd(n * PAID_NANO), "span": "day"}
    key = new_key(gateway, "rich", [limit])
    replies = ask_together(gateway, key, PAID)
    assert replies.statuses() == {200: n, 402: CROWD - n}
    for reply in replies.refused:
        assert reply.code == "budget_exceeded"
        assert "USD a day for this key" in reply.message
        assert int(reply.headers["retry-after"]) > 0
    assert ask(gateway, key, FREE).status == 200
    with pytest.raises(openai.APIStatusError) as refused:
        gateway.openai(key).chat.completions.create(**question(PAID))
    assert (refused.value.status_code, refused.value.code) == (402, "budget_exceeded")


@pytest.mark.parametrize("pays", ["budget", "credits"])
def test_nothing_is_lost_between_what_may_be_and_what_is_spent(gateway: Gateway, pays: str) -> None:
    """Much more is put aside for each request than it comes to: what is refused meanwhile is served afterwards."""
    n = 12
    if pays == "budget":
        limit = {"measure": "spend", "amount": usd(n * DEAR_NANO), "span": "month"}
        key, code = new_key(gateway, "rich", [limit]), "budget_exceeded"
    else:
        key, code = new_key(gateway, "poor"), "insufficient_credit"
        gateway.cli("credit", "add", usd(n * DEAR_NANO), "--user", "poor")
    replies = ask_together(gateway, key, DEAR)
    assert {reply.code for reply in replies.refused} == {code}
    served, reply = replies.served, ask(gateway, key, DEAR)
    while reply.status == 200:
        served, reply = served + 1, ask(gateway, key, DEAR)
    assert (reply.status, reply.code) == (402, code)
    assert n * DEAR_NANO - DEAR_HELD_NANO < served * DEAR_NANO <= n * DEAR_NANO

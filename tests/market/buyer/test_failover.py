"""Another seller continues an answer that breaks off: same model, same rules, same price limit."""

import json
from pathlib import Path
from typing import Any

import pytest

from accounting.money import Price
from accounting.spending import holds
from market.protocol.channels.job import Code
from market.protocol.listings.listing import Datacenter, DataPolicy
from market.protocol.listings.prices import Prices
from market.protocol.records.amounts import Amount
from tests.fakes.market_seller import Manners
from tests.market.buyer.stalls import ANSWER, QUESTION, due_nano, learn, stalls

pytestmark = pytest.mark.anyio

TEXTS = ("The ", "mill ", "grinds ", "what ", "the race ", "brings.")
CONTINUED = {"messages": [*QUESTION["messages"], {"role": "assistant", "content": "The mill "}]}
CHEAPER = Prices(Amount(10_000_000), Amount(40_000_000), Amount(5_000_000))
DEARER = Prices(Amount(20_000_000), Amount(80_000_001), Amount(5_000_000))


async def test_another_seller_goes_on_and_each_is_paid_for_its_part(tmp_path: Path) -> None:
    async with stalls(tmp_path, {"fault": "cut", "at": 2}, {"texts": TEXTS[2:]}) as market:
        ann, bob = market.sellers
        learn(market.app, [bob.listed(pricing=CHEAPER)])
        bill = await market.ask(ann)
        assert bill.text == ANSWER
        assert bill.is_whole
        assert bob.requests[0]["messages"] == CONTINUED["messages"]
        assert bob.requests[0]["max_tokens"] < ann.requests[0]["max_tokens"]
        theirs = due_nano(ann, "The mill "), due_nano(bob, "".join(TEXTS[2:]), CONTINUED)
        assert bill.cost_nano == market.owed_nano == sum(theirs)
        await market.until_told(ann, theirs[0])
        await market.until_told(bob, theirs[1])
        assert market.nothing_is_open()
        whole = await market.ask(ann, stream=False)
        assert whole.events[0]["choices"][0]["message"]["content"] == ANSWER


async def test_all_of_them_break_off(tmp_path: Path) -> None:
    manners: list[dict[str, Any]] = [{"fault": "stop", "at": 2}, {"fault": "cut", "at": 1}, {"fault": "garbage"}]
    async with stalls(tmp_path, *manners) as market:
        bill = await market.ask(market.sellers[0])
        assert bill.error
        assert bill.cost_nano == market.owed_nano
        assert [len(seller.requests) for seller in market.sellers] == [1, 1, 1]
        assert market.nothing_is_open()


KEEPING = DataPolicy(retains_prompts=True, may_publish=False, training=False, retention_days=30)


@pytest.mark.parametrize(
    "other",
    [
        {"pricing": DEARER},
        {"datacenters": (Datacenter("US"),)},
        {"data_policy": KEEPING},
        {"quantization": "int4"},
        {"weights_sha256": "c" * 64},
        {"context_length": 4096},
        {"is_ready": False},
    ],
)
async def test_only_sellers_that_could_be_chosen_continue_an_answer(tmp_path: Path, other: dict[str, Any]) -> None:
    """Threat 24: the caller's rules hold for the seller that takes over."""
    async with stalls(tmp_path, {"fault": "cut", "at": 2}, {}) as market:
        ann, bob = market.sellers
        learn(market.app, [bob.listed(**other)])
        bill = await market.ask(ann)
        assert bill.error
        assert not bob.raw
        assert bill.cost_nano == due_nano(ann, "The mill ")


async def test_other_weights_only_where_the_request_says_so(tmp_path: Path) -> None:
    async with stalls(tmp_path, {"fault": "cut", "at": 2}, {"texts": TEXTS[2:]}) as market:
        ann, bob = market.sellers
        learn(market.app, [bob.listed(weights_sha256="c" * 64)])
        bill = await market.ask(ann, headers={"x-millrace-continues": "1"})
        assert bill.text == ANSWER
        alone = await market.ask(ann, headers={"x-millrace-continues": "1", "x-millrace-alone": "1"})
        assert alone.error


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": {"name": "grind", "parameters": {}}}]},
        {"response_format": {"type": "json_object"}},
        {"n": 2},
    ],
)
async def test_half_of_some_answers_is_no_use(tmp_path: Path, fields: dict[str, Any]) -> None:
    async with stalls(tmp_path, {"fault": "cut", "at": 2}, {}) as market:
        ann, bob = market.sellers
        bill = await market.ask(ann, **fields)
        assert bill.error
        assert not bob.raw


@pytest.mark.parametrize("code", ["busy", "content"])
async def test_a_code_in_mid_answer_has_nothing_asked_twice_and_nothing_forgiven(
    tmp_path: Path, code: Code
) -> None:
    """A seller that stops with "busy", or with a refusal of the request, broke off like any other."""
    async with stalls(tmp_path, {"fault": "stop", "at": 2, "cut_code": code}) as market:
        (ann,) = market.sellers
        tool = {"type": "function", "function": {"name": "grind", "parameters": {}}}
        for fields in ({"tools": [tool]}, {"headers": {"x-millrace-alone": "1"}}, {}):
            ann.requests.clear()
            bill = await market.ask(ann, **fields)
            assert (bill.text, bool(bill.error), len(ann.requests)) == ("The mill ", True, 1)
            assert bill.cost_nano == market.owed_nano
        assert round(market.app.buyer._sellers.of(ann.id).tally.bad) == 3
        ann.manners = Manners(fault="stop", cut_code=code)
        assert (await market.ask(ann)).status == 502
        assert market.nothing_is_open()


async def test_together_they_get_no_more_than_was_put_aside(tmp_path: Path) -> None:
    async with stalls(tmp_path, {"fault": "cut", "at": 2}, {"texts": ["grind "] * 90}) as market:
        ann, bob = market.sellers
        bill = await market.ask(ann, max_tokens=60, headers={"x-millrace-ceiling-nano": "5500"})
        assert bob.requests[0]["max_tokens"] < 58
        assert due_nano(ann, "The mill ") < bill.cost_nano == market.owed_nano <= 5500
        # What is left pays for no word more.
        bob.requests.clear()
        bill = await market.ask(ann, max_tokens=1, headers={"x-millrace-ceiling-nano": "600"})
        assert bill.error
        assert not bob.requests


@pytest.mark.parametrize("words", [10, 130])
async def test_what_the_lane_puts_aside_is_enough_to_go_on(tmp_path: Path, words: int) -> None:
    """The lane's ceiling is a prompt of as many tokens as bytes, and the whole answer: no more than that."""
    long = tuple(f"word{n} " for n in range(words))
    async with stalls(tmp_path, {"fault": "cut", "at": words, "texts": long}, {}) as market:
        ann, bob = market.sellers
        body = json.dumps({"model": "mill-1b", "max_tokens": 2000, "stream": True} | QUESTION)
        ceiling_nano = holds.size(Price(20_000_000, 5_000_000, 80_000_000), len(body) + 80, 2000)
        bill = await market.ask(ann, max_tokens=2000, headers={"x-millrace-ceiling-nano": str(ceiling_nano)})
        assert bill.text == "".join(long) + ANSWER
        assert len(bob.raw) == 1

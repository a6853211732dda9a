"""What is bought is answered, counted by ourselves, and paid as delivered, whatever the seller does."""

import time
from pathlib import Path
from typing import Any

import pytest

from accounting.metering.tokenizers import load_counter
from market.buyer.channels import ENDS_WITHIN_MS
from market.buyer.credit import UNUSED_MAX
from market.buyer.shop import QUOTED_MS
from market.protocol.counting.token_count import Counting
from market.protocol.listings.listing import Datacenter, DataPolicy
from market.protocol.listings.prices import Prices, cost_nano
from market.protocol.records.amounts import Amount
from tests.fakes.market_seller import Fault, Manners, MarketSeller
from tests.market.buyer.stalls import ANSWER, QUESTION, Bill, Stalls, due_nano, learn, stalls

pytestmark = pytest.mark.anyio

CHUNKS = 7


async def check_is_settled(market: Stalls, seller: MarketSeller, bill: Bill) -> None:
    """Charge == delivered, and nothing is left reserved."""
    before_nano = seller.confirmed_nano
    due = due_nano(seller, bill.text)
    assert market.owed_nano == due
    if bill.status == 200:
        assert bill.cost_nano == due
    assert market.nothing_is_open()
    assert seller.confirmed_nano >= before_nano


async def test_an_answer_is_bought_in_every_form_and_no_user_is_named(tmp_path: Path) -> None:
    async with stalls(tmp_path, {}) as market:
        (seller,) = market.sellers
        caller: dict[str, Any] = {
            "user": "ann@example.com",
            "metadata": {"team": "mill"},
            "safety_identifier": "ann-7",
        }
        streamed = await market.ask(seller, **caller, millrace={"privacy": "public"}, provider={"sort": "price"})
        whole = await market.ask(seller, stream=False, **caller)
        completed = await market.ask(seller, path="/v1/completions", prompt="The mill", **caller)
        assert (streamed.text, completed.text) == (ANSWER, ANSWER)
        assert whole.events[0]["choices"][0]["message"]["content"] == ANSWER
        assert streamed.is_whole
        assert streamed.cost_nano == whole.cost_nano == due_nano(seller, ANSWER)
        assert completed.cost_nano == due_nano(seller, ANSWER, {"prompt": "The mill"})
        await market.until_told(seller, streamed.cost_nano + whole.cost_nano + completed.cost_nano)
        assert market.nothing_is_open()
        for requests in seller.requests:
            assert requests.keys() <= {"model", "stream", "messages", "prompt", "max_tokens"}
        told = b"".join(seller.raw) + repr(seller.headers).encode()
        assert not any(word in told for word in (b"example.com", b"ann-7", b"team", b"x-request-id", b"req-"))
        assert b"evil-id" not in streamed.body


@pytest.mark.parametrize("fault", ["cut", "stop"])
async def test_a_seller_that_dies_at_any_chunk_is_paid_for_what_came(tmp_path: Path, fault: Fault) -> None:
    """Threat 5, and no failover: there is no other seller."""
    async with stalls(tmp_path, {}) as market:
        (seller,) = market.sellers
        for at in range(CHUNKS):
            seller.manners = Manners(fault=fault, at=at)
            bill = await market.ask(seller)
            assert bill.text == "".join(seller.manners.texts[:at])
            assert bill.status == (200 if at else 502)
            assert bill.error
            assert not bill.is_whole
            await check_is_settled(market, seller, bill)
            # A caller without streaming gets and pays the part that came, as if cut by a token limit.
            whole = await market.ask(seller, stream=False)
            if at:
                (choice,) = whole.events[0]["choices"]
                assert (choice["message"]["content"], choice["finish_reason"]) == (bill.text, "length")
                assert whole.headers["x-millrace-cut"] == "1"
                assert whole.cost_nano == market.owed_nano == bill.cost_nano
            else:
                assert (whole.status, market.owed_nano) == (502, 0)


@pytest.mark.parametrize(
    "fault", ["twice", "garbage", "tamper", "event", "tool", "huge", "after_finish", "silence"]
)
async def test_what_is_no_answer_is_read_no_further(tmp_path: Path, fault: Fault) -> None:
    """Threat 25 and the stall timer: a prefix was delivered, and that alone is paid."""
    async with stalls(tmp_path, {"fault": fault, "at": 3}) as market:
        (seller,) = market.sellers
        bill = await market.ask(seller)
        assert bill.text == "The mill grinds "
        assert bill.error
        assert b"rm" not in bill.body
        await check_is_settled(market, seller, bill)
        assert market.app.buyer._sellers.of(seller.id).tally.bad == 1


@pytest.mark.parametrize("inflates", [1.05, 2.0, 10.0])
async def test_claims_of_more_tokens_change_no_charge(tmp_path: Path, inflates: float) -> None:
    """Threats 2 and 4: prompt and answer are what we count, whatever was put around the prompt."""
    async with stalls(tmp_path, {"inflates": inflates, "texts": ["grind "] * 60}) as market:
        (seller,) = market.sellers
        bill = await market.ask(seller, max_tokens=500)
        await check_is_settled(market, seller, bill)
        await market.until_told(seller, bill.cost_nano)
        assert seller.deliveries[0].amount_nano > bill.cost_nano
        anomalies = market.app.buyer._sellers.of(seller.id).anomalies
        assert anomalies == (1 if inflates > 1.5 else 0)


async def test_a_receipt_of_another_party_ends_it(tmp_path: Path) -> None:
    async with stalls(tmp_path, {"fault": "foreign_receipt", "at": 99}) as market:
        bill = await market.ask(market.sellers[0])
        assert bill.text == ANSWER
        assert bill.error
        await check_is_settled(market, market.sellers[0], bill)


async def test_tokens_that_a_seller_had_read_before_are_cheaper(tmp_path: Path) -> None:
    async with stalls(tmp_path, {"cached_tokens": 20}) as market:
        bill = await market.ask(market.sellers[0])
        assert bill.usage["prompt_tokens_details"]["cached_tokens"] == bill.usage["prompt_tokens"]
        assert bill.cost_nano < due_nano(market.sellers[0], ANSWER)


@pytest.mark.parametrize(
    ("texts", "flag"),
    [(["\u200b\u200c"] * 300, "invisible"), ([" \n \n"] * 200, "blank"), (["mill "] * 900, "repeated")],
)
async def test_padding_is_flagged_and_counted_as_text(tmp_path: Path, texts: list[str], flag: str) -> None:
    """Threat 3."""
    async with stalls(tmp_path, {"texts": texts}) as market:
        bill = await market.ask(market.sellers[0], max_tokens=4000)
        assert bill.cost_nano == due_nano(market.sellers[0], "".join(texts))
        state = market.app.buyer._credit._states[market.sellers[0].id][0]
        jobs = market.app.buyer._means.store.jobs(state.terms.channel)
        assert flag in jobs[0].flags


async def test_no_more_than_the_ceiling_is_ever_owed(tmp_path: Path) -> None:
    async with stalls(tmp_path, {"texts": ["grind "] * 100}) as market:
        (seller,) = market.sellers
        bill = await market.ask(seller, max_tokens=5)
        prompt = Counting(load_counter(seller.tokenizer)).prompt_tokens(QUESTION)
        prices = Prices(Amount(20_000_000), Amount(80_000_000), Amount(5_000_000))
        assert bill.cost_nano == market.owed_nano == cost_nano(prices, prompt, 0, 5)
        dear = await market.ask(seller, headers={"x-millrace-ceiling-nano": "10"})
        assert dear.status == 502
        assert len(seller.raw) == 1


async def test_a_busy_seller_has_less_room_than_it_says(tmp_path: Path) -> None:
    """Threat 29, what is learned: a 429 lowers the cap, and counts against it."""
    async with stalls(tmp_path, {"refuses": 429}) as market:
        bill = await market.ask(market.sellers[0])
        assert (bill.status, bill.headers["retry-after"]) == (429, "2")
        assert b"script" not in bill.body
        (row,) = market.app.shop.offers(1).offers
        assert row.cap < row.slots
        assert row.bad == 1
        assert market.owed_nano == 0
        assert market.nothing_is_open()


async def test_a_lane_that_a_seller_objects_to_is_left(tmp_path: Path) -> None:
    async with stalls(tmp_path, {}) as market:
        (seller,) = market.sellers
        await market.ask(seller)
        await market.until_told(seller, market.owed_nano)
        seller.manners = Manners(refuses=402, code="busy")
        assert (await market.ask(seller)).status == 502
        assert len(seller.refused) == 3
        seller.manners = Manners()
        assert (await market.ask(seller)).text == ANSWER
        assert round(market.app.buyer._sellers.of(seller.id).tally.bad) == 1


@pytest.mark.parametrize("code", ["limit", "ended"])
async def test_a_seller_locks_no_credit_by_calling_it_used_up(tmp_path: Path, code: str) -> None:
    """What our own figures do not bear out is a failure, and the credit stays in use."""
    async with stalls(tmp_path, {"refuses": 402, "code": code}) as market:
        (seller,) = market.sellers
        for _ in range(20):
            assert (await market.ask(seller)).status == 502
        assert len(market.marketplace.requests) == 1
        assert round(market.app.buyer._sellers.of(seller.id).tally.bad) == 20
        seller.manners = Manners()
        assert (await market.ask(seller)).text == ANSWER
        assert len(market.marketplace.requests) == 1


@pytest.mark.parametrize("code", ["limit", "ended"])
async def test_a_channel_near_its_end_is_left_when_its_seller_says_so(tmp_path: Path, code: str) -> None:
    async with stalls(tmp_path, {}) as market:
        (seller,) = market.sellers
        for _ in range(6):
            await market.ask(seller)
        (state,) = market.app.buyer._credit._states[seller.id]
        if code == "ended":
            state.expires_ms = time.time_ns() // 10**6 + ENDS_WITHIN_MS - 1000
        else:
            state.limit_nano = (state.limit_nano - state.room_nano) * 5 // 4
        seller.manners = Manners(refuses=402, code=code)
        assert (await market.ask(seller, max_tokens=1)).status == 502
        assert state.is_retired
        seller.manners = Manners()
        assert (await market.ask(seller)).text == ANSWER


@pytest.mark.parametrize("requests", [30, pytest.param(100, marks=pytest.mark.slow)])
async def test_little_waits_with_a_seller_that_uses_none_of_it(tmp_path: Path, requests: int) -> None:
    async with stalls(tmp_path, {"refuses": 402, "code": "spent"}) as market:
        (seller,) = market.sellers
        for _ in range(requests):
            assert (await market.ask(seller)).status == 502
        assert len(market.marketplace.requests) <= UNUSED_MAX


async def test_receipts_that_got_lost_come_with_the_next_job(tmp_path: Path) -> None:
    async with stalls(tmp_path, {"is_deaf": True}) as market:
        (seller,) = market.sellers
        first = await market.ask(seller)
        second = await market.ask(seller)
        assert (first.text, second.text) == (ANSWER, ANSWER)
        assert seller.confirmed_nano == first.cost_nano
        assert seller.refused == []


async def test_a_dearer_listing_is_not_bought_by_an_old_quote(tmp_path: Path) -> None:
    """Threat 30: the price is that of the voucher's listing, never above the one that was chosen."""
    async with stalls(tmp_path, {}) as market:
        (seller,) = market.sellers
        quoted = market.listing_of(seller)
        cheaper = Prices(Amount(10_000_000), Amount(40_000_000), Amount(5_000_000))
        learn(market.app, [seller.listed(pricing=cheaper)])
        bill = await market.ask(seller, listing=quoted)
        assert bill.cost_nano == due_nano(seller, ANSWER)
        dearer = Prices(Amount(20_000_000), Amount(90_000_000), Amount(5_000_000))
        learn(market.app, [seller.listed(pricing=dearer)])
        bill = await market.ask(seller, listing=quoted)
        assert (bill.status, bill.error and bill.error["code"]) == (502, "seller_superseded")
        assert len(seller.raw) == 1


KEEPING = DataPolicy(retains_prompts=True, may_publish=False, training=False, retention_days=30)


@pytest.mark.parametrize(
    "changed",
    [
        {"datacenters": (Datacenter("US"),)},
        {"data_policy": KEEPING},
        {"quantization": "int4"},
        {"weights_sha256": "c" * 64},
        {"id": "tiny-0.1b"},
        {"context_length": 4096},
        {"supported_features": ()},
    ],
)
async def test_a_listing_that_says_something_else_now_is_not_bought_by_an_old_quote(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    """Threat 24: the caller's rules were checked for what was quoted."""
    async with stalls(tmp_path, {}) as market:
        (seller,) = market.sellers
        quoted = market.listing_of(seller)
        learn(market.app, [seller.listed(**changed)])
        bill = await market.ask(seller, listing=quoted)
        assert (bill.status, bill.error and bill.error["code"]) == (502, "seller_superseded")
        assert not seller.raw


async def test_a_quote_holds_a_minute(tmp_path: Path) -> None:
    async with stalls(tmp_path, {}) as market:
        (seller,) = market.sellers
        quoted, shop = market.listing_of(seller), market.app.shop
        learn(market.app, [seller.listed()])
        assert (await market.ask(seller, listing=quoted)).text == ANSWER
        shop._now_ms = lambda: time.time_ns() // 10**6 + QUOTED_MS + 1000
        assert (await market.ask(seller, listing=quoted)).status == 502


async def test_a_third_party_at_a_sellers_address_gets_nothing(tmp_path: Path) -> None:
    """Threat 21, the buyer's side."""
    async with stalls(tmp_path, {}, {}) as market:
        ann, bob = market.sellers
        learn(market.app, [ann.listed(endpoint=bob.url)])
        bill = await market.ask(ann)
        assert bill.status == 502
        assert not bob.raw

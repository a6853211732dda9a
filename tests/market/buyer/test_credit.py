"""Credit with each seller: reserved in advance, across the marketplace's outages and our own restarts."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from market.buyer.orders import BuyerLimits, Orders
from market.buyer.server import opened
from market.protocol.channels.channel import settle
from tests.fakes.market_seller import Manners
from tests.fakes.marketplace import KEY
from tests.market.buyer.stalls import ANSWER, Stalls, due_nano, learn, stalls
from tests.market.seller.shop import until

pytestmark = pytest.mark.anyio


async def test_trade_goes_on_while_the_marketplace_is_away(tmp_path: Path) -> None:
    async with stalls(tmp_path, {}, {}) as market:
        ann, bob = market.sellers
        assert (await market.ask(ann)).text == ANSWER
        market.marketplace.is_away = True
        assert (await market.ask(ann)).text == ANSWER
        strange = await market.ask(bob)
        assert (strange.status, strange.error and strange.error["code"]) == (502, "seller_no_credit")
        assert market.nothing_is_open()
        market.marketplace.is_away = False
        assert (await market.ask(bob)).text == ANSWER
        assert market.app.buyer._sellers.of(bob.id).tally.bad == 0


async def test_credits_whose_allocation_got_lost_are_asked_for_under_the_same_key(tmp_path: Path) -> None:
    async with stalls(tmp_path, {}) as market:
        market.marketplace.loses_answers = 1
        assert (await market.ask(market.sellers[0])).status == 502
        assert (await market.ask(market.sellers[0])).text == ANSWER
        first, second = market.marketplace.keys
        assert first == second


async def test_a_marketplace_that_is_still_at_it_is_asked_under_the_same_key(tmp_path: Path) -> None:
    """The first caller has hung up, or waited too long; the credits are reserved all the same."""
    async with stalls(tmp_path, {}) as market:
        market.marketplace.loses_answers, market.marketplace.is_at_it = 1, 2
        for _ in range(3):
            assert (await market.ask(market.sellers[0])).status == 502
        assert (await market.ask(market.sellers[0])).text == ANSWER
        assert (len(market.marketplace.keys), len(set(market.marketplace.keys))) == (4, 1)


async def test_credits_that_were_asked_for_by_who_has_hung_up_are_the_next_one_s(tmp_path: Path) -> None:
    async with stalls(tmp_path, {}) as market:
        market.marketplace.waits_s = 0.2
        gone = asyncio.create_task(market.ask(market.sellers[0]))
        async with asyncio.timeout(60):
            while not market.marketplace.requests:
                await asyncio.sleep(0.005)
        gone.cancel()
        assert (await market.ask(market.sellers[0])).text == ANSWER
        assert (gone.cancelled(), len(market.marketplace.requests)) == (True, 1)
        assert market.nothing_is_open()


async def test_credit_is_renewed_before_it_runs_out(tmp_path: Path) -> None:
    async with stalls(tmp_path, {}, allocation_nano=20_000) as market:
        (seller,) = market.sellers
        for _ in range(12):
            assert (await market.ask(seller)).text == ANSWER
        states = market.app.buyer._credit._states[seller.id]
        assert len(states) >= 2
        assert sum(state.room_nano for state in states) >= 10_000
        assert all(order["limit"] == "0.00002" for order in market.marketplace.requests)
        buyers = {order["buyer"] for order in market.marketplace.requests}
        assert len(buyers) == 1


async def test_sellers_cannot_tell_that_they_have_the_same_buyer(tmp_path: Path) -> None:
    async with stalls(tmp_path, {}, {}) as market:
        for seller in market.sellers:
            await market.ask(seller)
        ann, bob = (order["buyer"] for order in market.marketplace.requests)
        assert ann != bob
        assert ann.encode() not in b"".join(market.sellers[1].raw)


async def test_many_at_once_use_lanes_of_their_own(tmp_path: Path) -> None:
    async with stalls(tmp_path, {"chunk_s": 0.005}) as market:
        (seller,) = market.sellers
        bills = await asyncio.gather(*(market.ask(seller) for _ in range(20)))
        assert [bill.text for bill in bills] == [ANSWER] * 20
        assert len(market.marketplace.requests) == 1
        await market.until_told(seller, sum(bill.cost_nano for bill in bills))
        assert market.nothing_is_open()


async def test_a_number_is_used_once_whatever_happens(tmp_path: Path) -> None:
    """Killed in the middle of an answer: the next life signs for what had come, and goes on behind it."""
    async with stalls(tmp_path, {}) as market:
        (seller,) = market.sellers
        await market.ask(seller)
        channel = market.app.buyer._credit._states[seller.id][0].terms.channel
        store = market.app.buyer._means.store
        dying = asyncio.create_task(market.ask(seller, listing=market.listing_of(seller), max_tokens=900))
        seller.manners = Manners(chunk_s=0.05, texts=("grind " * 250, *["more "] * 50))
        async with asyncio.timeout(60):
            while len(seller.raw) < 2 or not store.jobs(channel)[-1].progress:
                await asyncio.sleep(0.005)
        # What a crash leaves: the voucher is on disk, our receipt is not.
        store.end = lambda *_: None  # type: ignore[method-assign]
        dying.cancel()
        await asyncio.gather(dying, return_exceptions=True)
        begun = store.jobs(channel)[-1]
        assert (begun.seq, begun.receipt) == (2, None)
        await check_next_life(tmp_path, market, channel)


async def check_next_life(folder: Path, market: Stalls, channel: str) -> None:
    (seller,) = market.sellers
    given: dict[str, Any] = {
        "marketplace_url": market.marketplace.url,
        "marketplace_key": KEY,
        "allows_loopback": True,
    }
    file = market.sellers[0].tokenizer
    given |= {"tokenizers": {file.sha256.lower(): str(file.path)}, "bounds": BuyerLimits(first_byte_s=2)}
    orders = Orders("", str(folder / "market"), ("public",), **given)
    async with opened(orders) as app:
        learn(app, market.marketplace.records)
        await until(app.buyer._tokenizers.settled)
        (state,) = app.buyer._credit._states[seller.id]
        assert state.terms.channel == channel
        assert state.last_seqs == {0: 2}
        assert state.open_ceilings == {}
        _, job = app.buyer._means.store.jobs(channel)
        assert (job.amount_nano, job.flags) == (due_nano(seller, "grind " * 250), "died")
        # What the seller says of it later is answered: no claim is left that would settle.
        seller.manners = Manners()
        again = Stalls(app, market.marketplace, market.sellers, requests=100)
        assert (await again.ask(seller)).text == ANSWER
        assert state.last_seqs == {0: 3}
        assert seller.refused == []
        await again.until_told(seller, due_nano(seller, ANSWER) * 2 + job.amount_nano)
        due = settle(seller.channels[channel])
        assert (due.claimed_nano, due.confirmed_nano) == (0, seller.confirmed_nano)


async def test_another_marketplace_under_the_same_address_is_not_believed(tmp_path: Path) -> None:
    async with stalls(tmp_path, {}) as market:
        (seller,) = market.sellers
        await market.ask(seller)
        market.marketplace.name = "other marketplace"
        marketplace = market.app.buyer._credit._marketplace
        assert marketplace
        with pytest.raises(Exception, match="another identity than before"):
            await marketplace.meet()

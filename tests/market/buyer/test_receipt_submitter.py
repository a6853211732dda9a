"""We also send what we signed to the marketplace: a seller that withholds our receipt gains nothing."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from market.buyer.orders import BuyerLimits, Orders
from market.buyer.receipt_submitter import AWAY_MAX, AWAY_S_MAX, ReceiptSubmitter
from market.buyer.server import opened
from market.protocol.channels.channel import Channel, merge, settle
from market.protocol.channels.evidence import read_evidence
from market.protocol.channels.terms import read_allocation
from market.protocol.records.envelope import open_record
from tests.fakes.market_seller import STANDING, Manners
from tests.fakes.marketplace import KEY, FakeMarketplace
from tests.market.buyer.stalls import Stalls, stalls

pytestmark = pytest.mark.anyio


def submitting(market: Stalls) -> ReceiptSubmitter:
    """In the place of the process's own, which does it when it likes."""
    next(task for task in asyncio.all_tasks() if task.get_name() == "submitting").cancel()
    marketplace = market.app.buyer._credit._marketplace
    assert marketplace
    return ReceiptSubmitter(marketplace, market.app.buyer._means.store)


def known_to(marketplace: FakeMarketplace, told: Sequence[dict[str, Any]]) -> dict[str, Channel]:
    """Return the marketplace's view of each channel, from what it received."""
    channels: dict[str, Channel] = {}
    for each in told:
        terms, _ = read_allocation(open_record(each["allocation"].encode()), marketplace.id, STANDING)
        said = read_evidence((open_record(raw.encode()) for raw in each["records"]), terms, STANDING)
        channels[terms.channel] = merge(channels.get(terms.channel, Channel(terms)), said)
    return channels


async def test_a_seller_that_keeps_our_receipts_back_is_paid_what_we_have_signed(tmp_path: Path) -> None:
    """Its own receipt comes to the ceiling, and it tells the marketplace nothing else."""
    async with stalls(tmp_path, {"inflates": 10.0, "is_deaf": True}) as market:
        (seller,) = market.sellers
        paid_nano = (await market.ask(seller)).cost_nano
        (sellers_word,) = seller.channels.values()
        assert settle(sellers_word).claimed_nano > paid_nano
        telling = submitting(market)
        await telling.submit()
        (told,) = known_to(market.marketplace, market.marketplace.settled).values()
        due = settle(merge(sellers_word, told))
        assert (due.confirmed_nano, due.claimed_nano) == (paid_nano, 0)
        await telling.submit()
        assert len(market.marketplace.settled) == 1, "once is enough"
        # Nothing came: that is signed, too.
        seller.manners = Manners(fault="stop")
        assert (await market.ask(seller)).status == 502
        await telling.submit()
        (told,) = known_to(market.marketplace, market.marketplace.settled[1:]).values()
        assent = told.lanes[0].assent
        assert assent
        assert (assent.settled_seq, assent.amount_nano) == (2, paid_nano)


async def test_a_marketplace_that_was_away_is_told_later_and_by_our_next_life(tmp_path: Path) -> None:
    async with stalls(tmp_path, {}) as market:
        (seller,) = market.sellers
        first_nano = (await market.ask(seller)).cost_nano
        market.marketplace.is_away = True
        telling, now_s = submitting(market), 0.0
        telling.clock_s = lambda: now_s
        await telling.submit()
        market.marketplace.is_away = False
        await telling.submit()
        assert market.marketplace.settled == [], "it rests"
        now_s += AWAY_S_MAX
        await telling.submit()
        await market.ask(seller)
        given: dict[str, Any] = {
            "marketplace_url": market.marketplace.url,
            "marketplace_key": KEY,
            "allows_loopback": True,
        }
        async with opened(Orders("", str(tmp_path / "market"), ("public",), **given, bounds=BuyerLimits())):
            pass
        told = [known_to(market.marketplace, [each]).values() for each in market.marketplace.settled]
        first, second = (settle(channel) for (channel,) in told)
        assert (first.confirmed_nano, second.confirmed_nano) == (first_nano, 2 * first_nano)


async def test_a_channel_that_the_marketplace_refuses_keeps_no_other_back(tmp_path: Path) -> None:
    async with stalls(tmp_path, {}, {}, {}, {}) as market:
        for seller in market.sellers:
            await market.ask(seller)
        marketplace, telling, now_s = market.marketplace, submitting(market), 0.0
        telling.clock_s = lambda: now_s
        marketplace.refusals = [503] * AWAY_MAX
        await telling.submit()
        assert (marketplace.refusals, marketplace.settled) == ([], [])
        now_s += AWAY_S_MAX
        marketplace.refusals = [404, 503]
        await telling.submit()
        assert len(marketplace.settled) == len(market.sellers) - 2
        now_s += AWAY_S_MAX
        await telling.submit()
        assert len(known_to(marketplace, marketplace.settled)) == len(marketplace.settled) == len(market.sellers)

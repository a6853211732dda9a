"""What sellers earn trust by: answers with something in them, for long enough; and what is read no further."""

from pathlib import Path

import pytest

from market.buyer.sellers import KNOWN_AFTER, KNOWN_AFTER_S, KNOWN_TOKENS, SellerTracker
from market.buyer.store import BuyingStore
from tests.fakes.market_seller import Manners
from tests.market.buyer.stalls import ANSWER, stalls

pytestmark = pytest.mark.anyio


async def test_empty_answers_earn_nothing(tmp_path: Path) -> None:
    async with stalls(tmp_path, {"texts": ()}) as market:
        (seller,) = market.sellers
        for _ in range(4):
            bill = await market.ask(seller)
            assert (bill.status, bill.text, bill.cost_nano) == (200, "", 0)
        known = market.app.buyer._sellers.of(seller.id)
        assert known.tally.good == 0
        assert round(known.tally.bad) == 3, "one may be right"
        assert (known.tokens, known.since_s) == (0, None)
        seller.manners = Manners()
        assert (await market.ask(seller)).text == ANSWER
        assert (known.empty, round(known.tally.good)) == (0, 1)


def test_a_newcomer_becomes_known_by_requests_tokens_and_days(tmp_path: Path) -> None:
    now_s = 1e9
    store = BuyingStore(tmp_path / "buying.db")
    sellers = SellerTracker(store, clock_s=lambda: now_s)
    for _ in range(2 * int(KNOWN_AFTER)):
        sellers.answered("ann", "mill", 4, 0.1, 1)
        sellers.answered("bob", "mill", 4, 0.1, int(KNOWN_TOKENS))
    sellers.answered("cid", "mill", 4, 0.1, int(KNOWN_TOKENS))
    assert not sellers.is_known("bob")
    sellers.keep()
    now_s += KNOWN_AFTER_S
    for each in (sellers, SellerTracker(store, clock_s=lambda: now_s)):
        assert [name for name in ("ann", "bob", "cid") if each.is_known(name)] == ["bob"]
    store.close()


async def test_what_is_longer_than_was_asked_for_is_read_no_further(tmp_path: Path) -> None:
    texts = ["grind " * 2000] * 40
    async with stalls(tmp_path, {"texts": texts}) as market:
        (seller,) = market.sellers
        bill = await market.ask(seller, max_tokens=1)
        assert bill.error
        assert len(bill.text) < len("".join(texts)) / 4
        assert market.owed_nano == bill.cost_nano
        assert market.nothing_is_open()

"""Our buyer and our seller, each as it is: only the marketplace and the seller's own gateway are the test's."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from accounting.metering.tokenizers import Pinned
from market.buyer.orders import BuyerLimits, Orders
from market.buyer.server import opened
from market.protocol.channels.channel import settle
from tests.fakes.marketplace import KEY, clearing
from tests.market.buyer.stalls import Stalls, learn
from tests.market.seller.buyer import DEMO
from tests.market.seller.shop import open_shop, until
from tests.market.seller.stage import DEMO_TOKENIZER, END, words

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("named", [(DEMO,), ()], ids=["tokenizer", "bytes"])
async def test_they_agree_to_the_nano(tmp_path: Path, named: tuple[Pinned, ...]) -> None:
    """Both count by the tokenizer that buyer and marketplace know, or else by bytes."""
    async with open_shop(tmp_path / "seller") as shop, clearing() as marketplace:
        record = await shop.listed()
        marketplace.tokenizers = [DEMO_TOKENIZER]
        given: dict[str, Any] = {
            "marketplace_url": marketplace.url,
            "marketplace_key": KEY,
            "allows_loopback": True,
        }
        orders = Orders(
            "",
            str(tmp_path / "buyer"),
            ("public",),
            **given,
            partners=(record.issuer,),
            bounds=BuyerLimits(first_byte_s=5),
            tokenizers={each.sha256.lower(): str(each.path) for each in named},
        )
        async with opened(orders) as app:
            learn(app, [record])
            await until(app.buyer._tokenizers.settled)
            market = Stalls(app, marketplace)
            owed_nano = 0
            for count, is_whole in ((5, True), (300, True), (3, False)):
                shop.stage.script = [*words(count), *([END] if is_whole else [])]
                bill = await market.ask_for(record.digest, model="test/demo", max_tokens=600)
                assert bill.status == 200, bill.body
                assert bill.is_whole == is_whole
                assert bill.text == "".join(f" word{n}" for n in range(count))
                assert bill.cost_nano == market.owed_nano
                owed_nano += bill.cost_nano
                await shop.is_empty()
            (state,) = app.buyer._credit._states[record.issuer]
            vouchers = [
                lane.claim.promise.voucher for lane in (await shop.known(state.terms)).lanes.values() if lane.claim
            ]
            assert [each.tokenizer for each in vouchers] == [DEMO_TOKENIZER if named else None]
            async with asyncio.timeout(60):
                while settle(await shop.known(state.terms)).confirmed_nano != owed_nano:
                    await asyncio.sleep(0.02)
            due = settle(await shop.known(state.terms))
            assert (due.amount_nano, due.disputed_nano) == (owed_nano, 0)
            assert app.buyer._sellers.of(record.issuer).anomalies == 0
            assert market.nothing_is_open()

"""Signed receipts reach the marketplace and the own ledger, across crashes and outages; none is lost."""

import asyncio
import json
import sqlite3
from contextlib import aclosing
from pathlib import Path

import pytest

from market.network.marketplace import MarketplaceRefused
from market.protocol.channels.channel import settle
from market.protocol.channels.evidence import read_evidence
from market.protocol.identity.statements import revoke
from market.protocol.listings.prices import cost_nano
from market.protocol.records.envelope import open_record
from market.seller.channel_submitter import ChannelSubmitter
from market.seller.store import SellingStore
from runtime.settings import SettingsInvalid
from tests.databases import refusing
from tests.market.parties import STANDING, key_of
from tests.market.seller.shop import open_shop, shop_beside, until
from tests.market.seller.stage import END, Stage, staged, words

pytestmark = pytest.mark.anyio


def settled_nano(stage: Stage, buyer: "object") -> int:
    """What the marketplace would come to, from all that it was ever told, backwards."""
    terms = buyer.terms  # type: ignore[attr-defined]
    records = {raw: open_record(raw.encode()) for each in reversed(stage.settlements) for raw in each["records"]}
    return settle(read_evidence(records.values(), terms, STANDING)).amount_nano


async def test_marketplace_that_was_down_hears_of_everything(tmp_path: Path) -> None:
    async with open_shop(tmp_path, submit_s=1, marketplace_key="sk-marketplace") as shop:
        await until(lambda: shop.stage.registered)
        assert shop.stage.registered[0]["identity"] == shop.agent.own.id
        shop.stage.marketplace_is_up = False
        buyer = await shop.buyer()
        # Trade continues within the allocation.
        for _ in range(2):
            assert (await buyer.buy(buyer.order())).status == 200
        assert not shop.stage.settlements
        shop.stage.marketplace_is_up = True
        await shop.agent.submitting.submit()
        one = shop.stage.settlements[-1]
        assert one["allocation"] == buyer.backing[0].raw.decode()
        assert settled_nano(shop.stage, buyer) == settle(buyer.channel).amount_nano > 0
        # Told again only where there is more to tell.
        count = len(shop.stage.settlements)
        await shop.agent.submitting.submit()
        assert len(shop.stage.settlements) == count
        await buyer.hand_in()
        await shop.agent.submitting.submit()
        assert len(shop.stage.settlements) == count + 1

        await shop.agent.booking.book()
        assert [each["seq"] for each in shop.stage.sales] == [1, 2]
        assert {each["model"] for each in shop.stage.sales} == {"test/demo"}


async def test_what_is_over_and_told_is_forgotten(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        buyer = await shop.buyer()
        await buyer.buy(buyer.order())
        store, later_ms = shop.agent.submitting.store, buyer.made_ms + 100 * 86_400_000
        # Not before marketplace and ledger know of it, nor before it has ended for long.
        assert await store.sweep(later_ms) == 0
        await shop.agent.submitting.submit()
        await shop.agent.booking.book()
        assert await store.sweep(buyer.made_ms + 2 * 86_400_000) == 0
        assert await store.sweep(later_ms) == 1
        assert await store.evidence(buyer.terms.channel) == ()


async def test_receipt_is_on_disk_before_the_last_piece(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        buyer = await shop.buyer()
        purchase = buyer.order()
        async with aclosing(buyer.stream(purchase)) as stream:
            async for piece in stream:
                if piece and piece.kind == "r" and purchase.has_ended:
                    with sqlite3.connect(tmp_path / "market" / "selling.db") as db:
                        assert db.execute("SELECT count(*) FROM lanes WHERE is_final").fetchone() == (1,)
                        assert db.execute("SELECT count(*) FROM sales").fetchone() == (1,)
        assert purchase.has_ended


async def test_crash_in_an_answer_leaves_what_was_signed(tmp_path: Path) -> None:
    """The process is gone in the middle: the next one signs for what its receipts said, and the lane is free."""
    async with staged() as stage:
        stage.script = [*words(300), END]
        stage.steps = asyncio.Semaphore(150)
        async with shop_beside(stage, tmp_path) as shop:
            buyer = await shop.buyer()
            purchase = buyer.order(most_tokens=3000)
            async with aclosing(buyer.stream(purchase)) as stream:
                while not purchase.receipts:
                    await anext(stream)
                # As it lies there now, without what an orderly end would add.
                copy = tmp_path / "copy"
                (copy / "market").mkdir(parents=True)
                with sqlite3.connect(tmp_path / "market" / "selling.db") as old:
                    old.execute("VACUUM INTO ?", (str(copy / "market" / "selling.db"),))
                for name in ("identity.key", "selling-records.db"):
                    (copy / "market" / name).write_bytes((tmp_path / "market" / name).read_bytes())
                (copy / "market" / "identity.key").chmod(0o600)
        (count,) = buyer.sellers_word(purchase)
        stage.steps = None
        async with shop_beside(stage, copy) as again:
            claim = (await again.known(buyer.terms)).lanes[0].claim
            assert claim
            assert claim.receipt.is_final
            assert claim.receipt.completion_tokens == count.receipt.completion_tokens
            buyer.receive(purchase)
            buyer.endpoint, buyer.listing_record = again.endpoint, await again.listed()
            record = await again.listed()
            fresh = await again.buyer()
            fresh.made_ms, fresh.last_seq, fresh.channel = buyer.made_ms, buyer.last_seq, buyer.channel
            fresh.backing, fresh.terms, fresh.receipts = buyer.backing, buyer.terms, buyer.receipts
            assert record.revision > 0
            assert (await fresh.buy(fresh.order())).status == 200


async def test_marketplace_that_became_another_is_not_believed(tmp_path: Path) -> None:
    async with staged() as stage:
        async with shop_beside(stage, tmp_path):
            pass
        stage.marketplace_id = "marketplace two"
        async with shop_beside(stage, tmp_path) as shop:
            buyer = await shop.buyer()
            assert (await buyer.buy(buyer.order())).status == 200
            marketplace = shop.agent.submitting.marketplace
            assert marketplace
            assert marketplace.identity != stage.marketplace_identity


async def test_receipts_of_a_revoked_key_are_refused(tmp_path: Path) -> None:
    """Threat 20, the buyer's key: what it signs afterwards, and what it says it signed before, counts no more."""
    async with open_shop(tmp_path) as shop:
        buyer = await shop.buyer()
        assert (await buyer.buy(buyer.order())).status == 200
        thief = buyer.order()
        key = key_of("buyer")
        statement = revoke(buyer.terms.buyer, key.public_key, key, buyer.made_ms, "stolen")
        shop.agent.watch.keeper.add([statement.raw], "peer")
        assert (await buyer.buy(thief)).status == 400
        assert (await buyer.hand_in()).status_code == 400
        owed_nano = cost_nano(buyer.listing.pricing, 1, 0, 1)
        assert owed_nano > 0
        assert isinstance(shop.agent.submitting, ChannelSubmitter)
        assert json.loads(statement.raw)["kind"] == "revocation"


async def test_file_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "selling.db"
    await SellingStore(path).close()
    await SellingStore(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 1")
    with pytest.raises(SettingsInvalid, match=r"selling\.db was written by another version"):
        SellingStore(path)


@pytest.mark.parametrize("answer", ["{}", "[]", '{"identity": 7}', "[" * 2000])
async def test_marketplace_that_talks_nonsense_is_refused_and_nothing_else(tmp_path: Path, answer: str) -> None:
    async with open_shop(tmp_path, marketplace_key="sk-marketplace") as shop:
        marketplace = shop.agent.submitting.marketplace
        assert marketplace
        shop.stage.marketplace_says = answer
        for call in (marketplace.meet, marketplace.register):
            with pytest.raises(MarketplaceRefused):
                await call()


async def test_a_disk_that_refuses_ends_no_work_of_the_agents(tmp_path: Path) -> None:
    """One write that fails is no reason to sell nothing any more."""
    async with open_shop(tmp_path, submit_s=1) as shop:
        agent = shop.agent
        listed = await shop.listed()
        with refusing(tmp_path / "market" / "selling.db", "channels", "facts"):
            # It must be listed again, under a number that cannot be stored.
            agent.watch.publisher._listed.clear()
            work = [asyncio.create_task(each.run()) for each in (agent.submitting, agent.booking, agent.watch)]
            await asyncio.sleep(0.5)
            assert not any(each.done() for each in work)
            assert [each.digest for each in shop.listings] == [listed.digest]
        for each in work:
            each.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        await agent.watch.look(agent.watch._idle)
        assert (await shop.listed()).digest != listed.digest

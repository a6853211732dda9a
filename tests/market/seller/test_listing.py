"""What a seller says that it offers: true at every moment, newer with every change, gone when it does not hold."""

from pathlib import Path

import pytest

from market.errors import IdentityInvalid, StatementInvalid
from market.network.identity import OwnIdentity
from market.protocol.channels.statements import read_receipt
from market.protocol.identity.lineage import Identities
from market.protocol.identity.statements import revoke
from market.protocol.listings.listing import read_listing
from market.protocol.records.envelope import Record, open_record
from market.seller import seals, watch
from market.seller.reach import Reach
from market.seller.seals import Seals
from market.seller.states import UNREACHED
from runtime.times import now_ms
from tests.market.seller.shop import Shop, open_shop, shop_beside, until
from tests.market.seller.stage import staged

pytestmark = pytest.mark.anyio


async def newer(shop: Shop, record: Record) -> Record:
    """The listing that has taken this one's place."""
    return await until(lambda: next((each for each in shop.listings if each.digest != record.digest), None))


async def test_listing_says_what_the_gateway_has_and_the_owner_wants(tmp_path: Path) -> None:
    given = {"country_code": "NL", "hours": ({"days": range(7), "begins": "00:00", "ends": "00:00"},)}
    async with open_shop(tmp_path, **given) as shop:
        record = await shop.listed()
        listing = read_listing(record, allows_loopback=True)
        assert (listing.id, listing.weights_sha256, listing.context_length) == ("test/demo", "a" * 64, 4096)
        assert (listing.capacity.slots, listing.endpoint) == (2, shop.endpoint)
        assert (int(listing.pricing.prompt), int(listing.pricing.completion)) == (50 * 10**9, 200 * 10**9)
        assert listing.data_policy.is_zdr
        assert listing.datacenters[0].country_code == "NL"
        assert record.expires_ms
        assert record.expires_ms - record.made_ms <= 600_000

        # Another address is another revision; the old one is served until it ends.
        buyer = await shop.buyer()
        shop.agent.reaches.tell(Reach(True, "http://127.0.0.1:9"))
        moved = await newer(shop, record)
        assert moved.revision > record.revision
        assert read_listing(moved, allows_loopback=True).endpoint == "http://127.0.0.1:9"
        assert (await buyer.buy(buyer.order())).status == 200
        # A seller that cannot be reached offers nothing.
        shop.agent.reaches.tell(Reach(False))
        await until(lambda: not shop.listings)
        shop.stage.version += 1
        await until(lambda: shop.stage.state == UNREACHED)


async def test_nothing_is_listed_while_the_owner_works_or_no_preemptible_request_may_come(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:  # as soon as nothing of the owner's runs
        await shop.listed()
        shop.stage.own_batches = 1
        shop.stage.version += 1
        await until(lambda: not shop.listings)
        shop.stage.own_batches = 0
        shop.stage.version += 1
        await shop.listed()
        shop.stage.is_paused = True
        shop.stage.version += 1
        await until(lambda: not shop.listings)
        assert "paused" in shop.agent.watch._state
        shop.stage.is_paused = False
        shop.stage.version += 1
        await shop.listed()
    async with staged() as stage:
        stage.has_jobs = False
        async with shop_beside(stage, tmp_path / "other") as shop:
            await until(lambda: "no key for preemptible requests" in shop.agent.watch._state)
            assert not shop.listings
            stage.has_jobs = True
            stage.version += 1
            await shop.listed()


async def test_new_sealing_key_leaves_the_old_one_until_its_listings_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_shop(tmp_path) as shop:
        record, buyer = await shop.listed(), await shop.buyer()
        late = buyer.order()
        monkeypatch.setattr(seals, "KEY_S", 0.0)
        shop.stage.version += 1
        renewed = await newer(shop, record)
        keys = [read_listing(each, allows_loopback=True).sealing_key for each in (record, renewed)]
        assert keys[0] != keys[1]
        monkeypatch.undo()
        assert (await buyer.buy(late)).status == 200
        assert (await buyer.buy(late)).status == 402

    now_s = [0.0]
    kept = Seals(lambda: now_s[0])
    first = kept.current()
    assert kept.current() is first
    for number in range(75_000):
        first.seen.add(number.to_bytes(4))
    assert kept.current() is not first


async def test_revisions_grow_over_restarts_and_clocks_that_are_set_back(tmp_path: Path) -> None:
    async with staged() as stage:
        async with shop_beside(stage, tmp_path) as shop:
            first = await shop.listed()
        async with shop_beside(stage, tmp_path, clock_ms=lambda: now_ms() - 30_000) as shop:
            again = await until(lambda: next(iter(shop.agent.job_handler.live_listings.prices()), None))
            record = await until(lambda: next((each for each in shop.listings if each.digest == again), None))
            assert record.made_ms < first.made_ms < first.revision + 1
            assert record.revision > first.revision


async def test_seller_whose_key_is_revoked_sells_nothing(tmp_path: Path) -> None:
    """Threat 20: as soon as it hears of it, and never again with that key."""
    async with staged() as stage:
        async with shop_beside(stage, tmp_path) as shop:
            await shop.listed()
            own = shop.agent.own
            statement = revoke(own.id, own.signer.public_key, own.signer, now_ms(), "stolen")
            buyer = await shop.buyer()
            bought = await buyer.buy(buyer.order())
            shop.agent.watch.keeper.add([statement.raw], "peer")
            # Its earlier and present signatures are worthless to every party that knows of the revocation.
            (receipt,) = map(open_record, bought.receipts)
            with pytest.raises(StatementInvalid, match="revoked"):
                read_receipt(receipt, bought.promise, buyer.terms, Identities([statement]).standing)
            assert not shop.listings
            shop.stage.version += 1
            await until(lambda: shop.agent.job_handler.admission.closed)
            assert (await buyer.buy(buyer.order())).status == 503
        with pytest.raises(IdentityInvalid, match="revoked"):
            async with shop_beside(stage, tmp_path):
                pass


async def test_seller_that_rotated_its_key_goes_on_with_the_new_one(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        record, buyer = await shop.listed(), await shop.buyer()
        old_key = shop.agent.own.signer.public_key.hex()
        OwnIdentity.open(tmp_path / "market").rotate()
        shop.stage.version += 1
        renewed = await newer(shop, record)
        assert (renewed.issuer, renewed.key != old_key) == (record.issuer, True)
        assert (await buyer.buy(buyer.order())).status == 200


async def test_gateway_that_is_away_ends_the_sale_and_resumes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "AWAY_S", 0.05)
    async with open_shop(tmp_path) as shop:
        await shop.listed()
        shop.stage.is_away = True
        await until(lambda: not shop.listings)
        assert shop.agent.job_handler.admission.closed
        shop.stage.is_away = False
        await shop.listed()
        await until(lambda: not shop.agent.job_handler.admission.closed)

"""A sealed job comes to a whole seller by every way in: through a tunnel, and fetched from the marketplace."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from market.marketplace.relay_queue import RelayBounds
from market.seller.process import way_in_of
from market.seller.pull import Pull
from market.seller.reach import Reach
from market.seller.tunnel import Tunnel
from market.settings.seller import SellingSettings
from runtime.settings import SettingsInvalid
from tests.fakes.cloudflared import Installed
from tests.market.marketplace.relays import MARKETPLACE, PATIENCE_S, relaying
from tests.market.seller.shop import Shop, open_shop, until
from tests.market.seller.stage import END, STALL, words

pytestmark = pytest.mark.anyio

# A busy machine's parts come late, and are no less welcome.
PATIENT = RelayBounds(poll_s=5.0, first_part_s=PATIENCE_S, gap_s=PATIENCE_S, slow_reader_s=PATIENCE_S)


@asynccontextmanager
async def kept_open(shop: Shop, way: Tunnel | Pull) -> AsyncIterator[None]:
    """The seller is to be reached by this way alone."""
    reaches = shop.agent.reaches
    reaches.tell(Reach(False))
    task = asyncio.create_task(way.run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            async for reach in reaches.changes():
                if reach.is_open:
                    break
        # The seller may have closed while it had no way in.
        admission = shop.agent.job_handler.admission
        await until(lambda: admission.closed is None)
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert not reaches.now.is_open


def way_in(shop: Shop, settings: SellingSettings) -> Tunnel | Pull:
    own, agent = shop.agent.own, shop.agent
    return way_in_of(
        settings, shop.endpoint, own.id, own.signer, agent.outbound, lambda: MARKETPLACE, agent.reaches
    )


async def buys(shop: Shop, endpoint: str) -> None:
    shop.stage.script = [*words(300), END]
    buyer = await shop.buyer()
    buyer.endpoint = endpoint
    bought = await buyer.buy(buyer.order(most_tokens=3000))
    assert (bought.status, bought.cut, bought.has_ended) == (200, None, True)
    assert bought.text == "".join(f" word{n}" for n in range(300))
    assert buyer.sellers_word(bought)[-1].receipt.is_final
    assert (await buyer.hand_in()).json() == {"lanes": 1}


async def test_through_a_tunnel(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        cloudflared = Installed(tmp_path / "bin")
        settings = SellingSettings(cloudflared=str(cloudflared.path), allows_loopback=True)
        agent = shop.agent
        way = way_in(shop, settings)
        async with kept_open(shop, way):
            assert agent.reaches.now.address
            assert agent.reaches.now.address != shop.endpoint
            await buys(shop, agent.reaches.now.address)


async def test_fetched_from_the_marketplace(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop, relaying(shop.agent.own.id, PATIENT) as marketplace:
        settings = SellingSettings(tunnel="none", marketplace_url=marketplace.url)
        agent = shop.agent
        way = way_in(shop, settings)
        assert isinstance(way, Pull)
        async with kept_open(shop, way):
            assert agent.reaches.now.address is None
            await buys(shop, marketplace.endpoint(agent.own.id))


async def test_a_buyer_that_hangs_up_at_the_marketplace_is_gone_for_the_seller(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop, relaying(shop.agent.own.id, PATIENT) as marketplace:
        agent = shop.agent
        way = Pull(
            marketplace.url,
            agent.own.id,
            agent.own.signer,
            agent.outbound,
            shop.endpoint,
            lambda: MARKETPLACE,
            agent.reaches,
        )
        shop.stage.script = [*words(20), STALL]
        async with kept_open(shop, way):
            buyer = await shop.buyer()
            buyer.endpoint = marketplace.endpoint(agent.own.id)
            purchase = buyer.order(most_tokens=3000)
            async for piece in buyer.stream(purchase):
                if piece is not None and piece.kind == "d":
                    break
            await shop.is_empty()
            assert not purchase.has_ended


def test_without_tunnel_and_marketplace_no_buyer_could_connect() -> None:
    with pytest.raises(SettingsInvalid, match="marketplace_url"):
        way_in_of(SellingSettings(tunnel="none"), "http://127.0.0.1:9", "0" * 64, None, None, str, None)  # type: ignore[arg-type]

"""A buyer takes an answer and denies its prompt: the seller's agent shows it to the marketplace, and is paid."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.admin.marketplace_requests import SEALED_CHARS_MAX
from market.protocol.channels.terms import read_allocation
from market.protocol.listings.prices import cost_nano
from market.protocol.records.envelope import Record, open_record
from market.seller.denied_prompts import DeniedPrompts
from market.seller.marketplace_client import AllocationLanes, SellerMarketplaceClient
from market.seller.proofs import Proofs
from tests.market.marketplace.conftest import USD, Hall, open_hall, post
from tests.market.marketplace.relays import served
from tests.market.parties import STANDING
from tests.market.seller.buyer import COUNTING, DEMO, Buyer, Purchase, asking
from tests.market.seller.shop import Shop, shop_beside, until
from tests.market.seller.stage import staged

pytestmark = pytest.mark.anyio

REQUEST = asking(messages=[{"role": "user", "content": "Say what the mill grinds. " * 200}])
PROMPT_TOKENS = COUNTING.prompt_tokens(REQUEST)


@dataclass
class Market:
    """A marketplace, a seller that earns for Sam there, and a buyer with Ann's credits."""

    hall: Hall
    shop: Shop
    buyer: Buyer
    allocation: Record

    @property
    def disputing(self) -> DeniedPrompts:
        return self.shop.agent.disputing

    @property
    def proofs(self) -> Proofs:
        assert self.disputing.proofs is not None
        return self.disputing.proofs

    async def served(self, lane: int) -> Purchase:
        """An answer that the buyer has read and not signed for; the marketplace knows what the seller says."""
        purchase = self.buyer.order(REQUEST, lane=lane)
        async for _ in self.buyer.stream(purchase):
            pass
        assert purchase.has_ended, purchase.error
        await self.shop.agent.submitting.submit()
        return purchase

    async def signed(self, purchase: Purchase, prompt_tokens: int) -> None:
        """The buyer signs for all of the answer and for so much of the prompt, and tells the marketplace alone."""
        purchase.prompt_tokens = prompt_tokens
        receipt = self.buyer.receive(purchase)
        await self.hall.settle(self.allocation, [purchase.promise.record, receipt.record])

    async def lane(self, number: int) -> dict[str, Any]:
        async with self.hall.of("ann") as ann:
            answer = await ann.get(f"/market/v1/disputes/{self.allocation.digest}")
        lane: dict[str, Any] = next(each for each in answer.json()["lanes"] if each["lane"] == number)
        return lane


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Market]:
    async with (
        open_hall(folder / "marketplace", tokenizer=DEMO, allows_loopback=True) as hall,
        served(hall.served.app) as url,
    ):
        await hall.credit("ann", 10 * USD)
        await hall.credit("sam", USD)
        key = hall.served.key_of("sam")
        async with (
            staged() as stage,
            shop_beside(stage, folder / "seller", marketplace_url=url, marketplace_key=key) as shop,
        ):
            await until(lambda: shop.agent.own.id in hall.marketplace.sellers.identities_of("sam"))
            buyer = await shop.buyer()
            async with hall.buying("ann") as ann:
                request = {"buyer": buyer.terms.buyer, "seller": buyer.seller, "limit": "5.00"}
                answer = await post(ann, "/allocations", **request)
            allocation = open_record(answer.json()["allocation"].encode())
            buyer.rest_on(
                [allocation], read_allocation(allocation, hall.marketplace.context.speaker.id, STANDING)[0]
            )
            yield Market(hall, shop, buyer, allocation)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def market(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Market]:
    """One for all tests here, each of which has lanes of its own."""
    async with opened(tmp_path_factory.mktemp("market")) as market:
        yield market


async def test_who_denies_its_prompt_pays_it_by_the_canonical_count(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    hall, disputing, lanes = market.hall, market.disputing, SellerMarketplaceClient.lanes
    purchase, before = await market.served(0), await hall.standing()

    async def lying(marketplace: SellerMarketplaceClient, allocation: str) -> AllocationLanes:
        reply = await lanes(marketplace, allocation)
        return replace(reply, lanes=[replace(each, standing="disputed") for each in reply.lanes])

    # A marketplace that would like to read a prompt needs the buyer's own signature under a denial.
    with monkeypatch.context() as patched:
        patched.setattr(SellerMarketplaceClient, "lanes", lying)
        await disputing.look()
    assert ((await market.lane(0))["standing"], (await market.lane(0))["dispute"]) == ("claimed", None)

    await market.signed(purchase, prompt_tokens=3)
    assert (await market.lane(0))["standing"] == "disputed"
    await disputing.look()
    prices, lane = market.buyer.listing.pricing, await market.lane(0)
    owed_nano = cost_nano(prices, PROMPT_TOKENS, 0, purchase.tokens)
    assert owed_nano > 20 * cost_nano(prices, 3, 0, purchase.tokens)
    dispute = lane["dispute"]
    assert (lane["standing"], dispute["reason"], dispute["loser"]) == ("settled", "prompt", "buyer")
    standing = await hall.standing()
    assert before["user:ann:paid"] - standing["user:ann:paid"] == owed_nano
    assert (standing["user:sam:paid"], await hall.held("user:sam:paid")) == (USD, 0)
    assert market.proofs.size_bytes == 0
    await hall.check()


async def test_what_does_not_belong_to_the_voucher_is_refused_by_its_name(market: Market) -> None:
    hall = market.hall
    honest, denied = await market.served(1), await market.served(2)
    other, proof = market.proofs.of(market.buyer.terms.channel)
    await market.signed(honest, PROMPT_TOKENS)
    await market.signed(denied, prompt_tokens=3)
    shown, theirs = proof.shown, other.shown
    prompt = {"sealed": base64.b64encode(shown.sealed).decode(), "key": shown.keys.key.hex()}
    prompt["nonce"] = shown.keys.nonce.hex()
    body = {"allocation": market.allocation.raw.decode(), "lane": 2}
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("prompt.sealed", {"prompt": prompt | {"sealed": base64.b64encode(theirs.sealed).decode()}}),
        ("prompt.sealed", {"prompt": prompt | {"sealed": "no base64"}}),
        ("prompt.sealed", {"prompt": prompt | {"sealed": "A" * (SEALED_CHARS_MAX + 4)}}),
        ("prompt.key", {"prompt": prompt | {"key": theirs.keys.key.hex()}}),
        ("prompt.nonce", {"prompt": prompt | {"nonce": "00"}}),
        ("texts", {}),
    ]
    async with hall.of("sam") as sam, hall.of("bob") as bob:
        for param, changed in wrong:
            answer = await sam.post("/market/v1/disputes", json=body | changed)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
            assert prompt["key"] not in answer.text
        assert (await bob.post("/market/v1/disputes", json=body | {"prompt": prompt})).status_code == 404
        assert (await bob.get(f"/market/v1/disputes/{market.allocation.digest}")).status_code == 404
    assert ((await market.lane(2))["standing"], (await market.lane(2))["dispute"]) == ("disputed", None)
    assert await hall.held("user:sam:paid") == 0
    # An undisputed prompt is not shown, and is forgotten.
    await market.disputing.look()
    assert (await market.lane(1))["dispute"] is None
    assert market.proofs.size_bytes == 0

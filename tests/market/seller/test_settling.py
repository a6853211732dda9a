"""A marketplace accepts what a seller submits, whatever its buyers have signed or left out."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from accounting.proofs.signing_key import Signer
from accounting.rules.held import Payer
from gateway.admin.marketplace_requests import NewSettlement
from market.marketplace.allocations import AllocationRequest
from market.marketplace.sellers import proof_message
from market.protocol.channels.terms import read_allocation
from market.protocol.identity.statements import ROTATIONS_MAX, rotate
from market.protocol.listings.prices import cost_nano
from market.protocol.records.envelope import Saying, open_record, sign
from runtime.database import open_engine
from tests.accounting.ledgers import LedgerService
from tests.market.marketplace.rules.conftest import USD, Marketplace, MarketplaceVoice
from tests.market.parties import STANDING, key_of
from tests.market.seller.buyer import Buyer, Purchase
from tests.market.seller.shop import Shop, open_shop

pytestmark = pytest.mark.anyio


@pytest.fixture
def marketplace(dsn: str) -> Iterator[Marketplace]:
    engine = open_engine(dsn)
    with LedgerService(engine) as ledger:
        ledger.now_ns = time.time_ns()
        ledger.credit("ann", 100 * USD)
        yield Marketplace(ledger, engine)
    engine.dispose()


def rest_on(buyer: Buyer, marketplace: Marketplace, shop: Shop) -> None:
    """Put credits aside at this marketplace for the seller, who is registered there."""
    signer = shop.agent.own.signer
    proof = signer.sign(proof_message(MarketplaceVoice.id, "sam")).hex()
    marketplace.sellers.register("sam", buyer.seller, signer.public_key.hex(), proof, ())
    request = AllocationRequest("a-1", Payer("ann", ""), buyer.terms.buyer, buyer.seller, USD, 24)
    allocation = open_record(marketplace.allocations.issue(request))
    buyer.rest_on([allocation], read_allocation(allocation, MarketplaceVoice.id, STANDING)[0])


def settle_at(marketplace: Marketplace, shop: Shop) -> int:
    """Submit all that the seller has sent to a marketplace; return what it confirms."""
    for body in shop.stage.settlements:
        form = NewSettlement.model_validate(body)
        digest = open_record(form.allocation.encode()).digest
        records, signed = ([raw.encode() for raw in raws] for raws in (form.records, form.statements))
        reckoning = marketplace.settlements.submit(digest, records, signed).reckoning
    return reckoning.confirmed_nano + reckoning.claimed_nano


def turned(buyer: Buyer, times: int) -> tuple[Signer, list[bytes]]:
    """So many rotations of the buyer's key, and the last one's key."""
    key, signed = key_of(buyer.name), list[bytes]()
    for number in range(1, times + 1):
        new = key_of(f"{buyer.name} {number}")
        signed.append(rotate(buyer.terms.buyer, number, key.public_key, new, key, buyer.made_ms).raw)
        key = new
    return key, signed


def by_key(buyer: Buyer, purchase: Purchase, key: Signer, signed: list[bytes]) -> Purchase:
    """The same job with its voucher signed by another key."""
    voucher = purchase.promise.voucher
    record = sign(Saying("voucher", buyer.terms.buyer, "v", voucher.seq, buyer.made_ms, voucher), key)
    purchase.job = msgspec.structs.replace(purchase.job, voucher=record.raw, statements=signed)
    return purchase


async def status(buyer: Buyer, purchase: Purchase) -> int:
    async for _ in buyer.stream(purchase):
        pass
    return purchase.status


async def test_no_buyer_can_keep_a_channel_from_being_settled(tmp_path: Path, marketplace: Marketplace) -> None:
    """Other records among the statements, keys that later jobs leave out, more statements than are accepted."""
    async with open_shop(tmp_path) as shop:
        buyer = await shop.buyer()
        rest_on(buyer, marketplace, shop)
        junk = buyer.order()
        junk.job = msgspec.structs.replace(junk.job, statements=[junk.job.voucher])
        assert await status(buyer, junk) == 400

        last, signed = turned(buyer, ROTATIONS_MAX)
        first, second, third = (buyer.order(lane=n) for n in range(3))
        assert await status(buyer, by_key(buyer, first, last, signed)) == 200
        # With its first key, and not a word about the others.
        assert await status(buyer, second) == 200
        shop.agent.own.rotate()
        assert await status(buyer, third) == 200
        await shop.is_empty()
        await shop.agent.submitting.submit()
        answers = [first, second, third]
        assert settle_at(marketplace, shop) == sum(cost_of(buyer, each) for each in answers) > 0


def cost_of(buyer: Buyer, purchase: Purchase) -> int:
    return cost_nano(buyer.listing.pricing, purchase.prompt_tokens, 0, purchase.tokens)


async def test_what_the_marketplace_refuses_is_told_again(tmp_path: Path) -> None:
    """A proxy's 403, or one channel that the marketplace fails at: others do not wait, and it is retried."""
    async with open_shop(tmp_path) as shop:
        submitting = shop.agent.submitting
        for name in ("one", "two", "three"):
            buyer = await shop.buyer(name)
            assert (await buyer.buy(buyer.order())).status == 200
        shop.stage.settling = [403, 500]
        await submitting.submit()
        assert len(shop.stage.settlements) == 1
        # Not before their time.
        await submitting.submit()
        assert len(shop.stage.settlements) == 1
        later = replace(submitting, clock_ms=lambda: submitting.clock_ms() + 10_000)
        await later.submit()
        assert len({each["allocation"] for each in shop.stage.settlements}) == 3
        assert await submitting.store.unsubmitted(2**60) == []

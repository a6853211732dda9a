"""Two households with a seller and a buyer each, as they are, on real sockets; nowhere is there a marketplace."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from gateway.cli.main import app as millrace
from market.buyer.app import BuyingApp
from market.buyer.orders import BuyerLimits, Orders
from market.buyer.server import opened
from market.credit_lines.balance import Balance
from market.credit_lines.credit_line_service import CreditLineService
from market.protocol.channels.channel import settle
from tests.fakes.marketplace import FakeMarketplace
from tests.market.buyer.stalls import Bill, Stalls
from tests.market.seller.shop import Shop, open_shop, until


def partner(folder: Path, *words: str) -> Result:
    """Run `millrace partner` on a household's folder."""
    return CliRunner().invoke(millrace, ["partner", *words, "--data-dir", str(folder)])


def run(folder: Path, *words: str) -> str:
    """What the command prints; it must succeed."""
    result = partner(folder, *words)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def listed(folder: Path) -> dict[str, str]:
    """The one line of a household, as programs read it."""
    (found,) = json.loads(run(folder, "list", "--json"))
    assert isinstance(found, dict)
    return found


@dataclass
class Side:
    folder: Path
    shop: Shop

    @property
    def id(self) -> str:
        return self.shop.agent.own.id

    @property
    def desk(self) -> CreditLineService:
        return CreditLineService(self.folder / "market", self.shop.agent.own)

    @property
    def position(self) -> Balance:
        (found,) = self.desk.positions()
        return found

    @asynccontextmanager
    async def buying(self) -> AsyncIterator["Buying"]:
        """The household's buyer, for the length of the block."""
        orders = Orders(
            "",
            str(self.folder / "market"),
            ("public",),
            allows_loopback=True,
            bounds=BuyerLimits(first_byte_s=5),
        )
        async with opened(orders) as app:
            yield Buying(self, app, Stalls(app, FakeMarketplace()))


@dataclass
class Buying:
    side: Side
    app: BuyingApp
    stalls: Stalls

    async def listing_of(self, seller: Side) -> str:
        """As gossip with the partner's own gateway has told it."""

        def look() -> str | None:
            offerings, _ = self.app.shop.offerings()
            return next((each.record.digest for each in offerings if each.seller == seller.id), None)

        return await until(look)

    async def buy(self, seller: Side, **fields: Any) -> Bill:
        """Buy, and wait until the seller has what was signed for it."""
        listing = await self.listing_of(seller)
        bill = await self.stalls.ask_for(listing, model="test/demo", max_tokens=TOKENS, **fields)
        await seller.shop.is_empty()
        if bill.status == 200:
            (state,) = self.app.buyer._credit._lines.of(seller.id)  # type: ignore[union-attr]
            await until(lambda: not state.unsent_receipts)
            mine, theirs = self.side.position, seller.position
            assert (mine.bought_nano, mine.sold_nano) == (theirs.sold_nano, theirs.bought_nano)
            assert mine.owed_nano == -theirs.owed_nano
            assert mine.bought_nano == settle(state.channel).amount_nano
        return bill


TOKENS = 100


@asynccontextmanager
async def two(folder: Path) -> AsyncIterator[tuple[Side, Side]]:
    async with AsyncExitStack() as stack:
        sides = []
        # Ann has a recovery key, so that her keys count by what she has said of them; Bob's identity is his key.
        assert (
            CliRunner().invoke(millrace, ["identity", "create", "--data-dir", str(folder / "ann")]).exit_code == 0
        )
        for name in ("ann", "bob"):
            shop = await stack.enter_async_context(open_shop(folder / name, marketplace_url=None))
            await shop.listed()
            sides.append(Side(folder / name, shop))
        yield sides[0], sides[1]

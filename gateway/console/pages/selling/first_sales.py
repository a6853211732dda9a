"""Notices of each listing's first sale, shown on any live page of its seller; browsers show each once."""

import asyncio
import time
from dataclasses import dataclass, replace
from pathlib import Path

from gateway.app_state import OptionalMarketplace
from gateway.console.access import Visitor
from gateway.console.feeds import LivePage, Points, Region

NEWS_NS = 86_400 * 10**9
"""Older sales are not announced, so a browser without stored state shows no old news."""
_EVERY_S = 5.0
_SELLERS_KEPT = 1000


@dataclass(frozen=True, slots=True)
class FirstSale:
    """`key` identifies the notice in browsers."""

    key: str
    what: str
    amount_nano: int
    made_ns: int


class FirstSales:
    """First sales found so far: they never change, so only newer rows are read. Belongs to one event loop.

    Operators see first sales of this machine's listings. Sellers see their own first sale on this marketplace,
    which does not record sales by listing.
    """

    def __init__(self, market: Path, marketplace: OptionalMarketplace) -> None:
        self._market = market
        self._marketplace = marketplace
        self._of_listings: dict[str, FirstSale] = {}
        self._last_row = 0
        self._of_sellers: dict[str, FirstSale] = {}
        self._looked_s: dict[str, float] = {}

    def beside(self, live_page: LivePage, visitor: Visitor) -> LivePage:
        """Return the same page, with notices added for sellers."""
        if visitor.standings.isdisjoint(("seller", "operator")):
            return live_page

        async def render() -> list[Region | Points]:
            drawn, found = await live_page.render(), await self.of(visitor)
            return [*drawn, Region("news", "selling/first_sales.html", {"found": found})] if found else [*drawn]

        return replace(live_page, render=render)

    async def of(self, visitor: Visitor) -> list[FirstSale]:
        """Return first sales of the last day, oldest first."""
        if visitor.is_operator:
            await self._look_at_listings()
            known = list(self._of_listings.values())
        else:
            await self._look_at_seller(visitor.caller.user_id)
            mine = self._of_sellers.get(visitor.caller.user_id)
            known = [mine] if mine else []
        since_ns = time.time_ns() - NEWS_NS
        return sorted((each for each in known if each.made_ns >= since_ns), key=lambda each: each.made_ns)

    async def _look_at_listings(self) -> None:
        if not self._is_time(""):
            return
        found = await asyncio.to_thread(_read, self._market, self._last_row)
        if found is None:
            return
        self._last_row, firsts = found
        for first in firsts:
            self._of_listings.setdefault(first.key, first)

    async def _look_at_seller(self, user_id: str) -> None:
        marketplace = self._marketplace
        if marketplace is None or user_id in self._of_sellers or not self._is_time(user_id):
            return
        from gateway.console.pages.selling.desks import first_drawn

        found = await marketplace.ask(lambda: first_drawn(marketplace, user_id))
        if found is not None:
            what = "Your first sale on this marketplace"
            self._keep(user_id, FirstSale(f"marketplace {user_id}", what, found.drawn_nano, found.drawn_ns))

    def _keep(self, user_id: str, first: FirstSale) -> None:
        while len(self._of_sellers) >= _SELLERS_KEPT:
            del self._of_sellers[next(iter(self._of_sellers))]
        self._of_sellers[user_id] = first

    def _is_time(self, whose: str) -> bool:
        now_s = time.monotonic()
        if now_s < self._looked_s.get(whose, -_EVERY_S) + _EVERY_S:
            return False
        self._looked_s = {name: at_s for name, at_s in self._looked_s.items() if now_s < at_s + _EVERY_S}
        self._looked_s[whose] = now_s
        return True


def _read(market: Path, after_row: int) -> tuple[int, list[FirstSale]] | None:
    """Return the earliest sale of each listing among the newer rows, and the last row. Takes milliseconds."""
    if not (market / "selling.db").exists():
        return None  # nothing is sold here; do not import market code
    from gateway.console.pages.selling.records import AgentFiles

    found = AgentFiles(market).sold_first(after_row)
    if found is None:
        return None
    last_row, sold = found
    return last_row, [
        FirstSale(f"listing {each.model}", f"First sale of {each.model}", each.amount_nano, each.made_ns)
        for each in sold
    ]

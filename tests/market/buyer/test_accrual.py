"""The ledger owes sellers what their channels say, even if a process or caller disappeared meanwhile."""

import asyncio
import os
import random
import signal
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from gateway.lanes.market.lane import MarketLane
from market.buyer.owed import OwedPage
from market.buyer.owed_reconciler import LOST_AFTER_S, OwedReconciler
from market.buyer.shielded import shielded
from market.protocol.offers import Offers
from tests.fakes.market_seller import Manners
from tests.gateway.http.edges import until
from tests.gateway.requests.roads import nothing_is_left, send
from tests.market.buyer.stalls import ANSWER, due_nano
from tests.market.buyer.test_lane import ASKED, Fair, fair

pytestmark = pytest.mark.anyio

LOST = "req_whose_gateway_was_killed"


@dataclass
class Accounts:
    """The ledger's market accounts beside the buyer's own file."""

    market: Fair
    is_deaf: bool = False
    """Whether what the buyer is told gets lost on its way."""

    @property
    def lane(self) -> MarketLane:
        lane = self.market.running.services.lanes["market"]
        assert isinstance(lane, MarketLane)
        return lane

    async def ask(self, method: str, target: str) -> bytes:
        if method == "POST" and self.is_deaf:
            raise OSError("the buyer has died")
        return await self.lane.ask_buyer(method, target)

    async def book(self, lost_after_s: float = LOST_AFTER_S) -> int:
        services = self.market.running.services
        ledger, bookkeeper = services.ledger, services.bookkeeper
        booking = OwedReconciler(
            self.ask, ledger.book, ledger.look, lambda: bookkeeper.is_behind, lost_after_s=lost_after_s
        )
        return await booking.book_all()

    async def book_until_told(self, *but: str) -> None:
        """Until the buyer has no more to tell but these."""
        async with asyncio.timeout(60):
            while [each.id for each in await self.told()] != list(but):
                await self.book()
                await asyncio.sleep(0.05)

    async def told(self) -> list[Any]:
        page = msgspec.json.decode(await self.lane.ask_buyer("GET", "/owed?after="), type=OwedPage)
        return list(page.requests)

    def channels(self) -> dict[str, tuple[int, int]]:
        """What the channels' receipts come to for each request, and how many of its jobs the buyer died in."""
        path = self.market.running.services.settings.data_dir / "market" / "buying.db"
        columns = "request_id, COALESCE(SUM(amount_nano), 0), SUM(receipt IS NULL OR flags = 'died')"
        query = f"SELECT {columns} FROM job GROUP BY 1"
        with closing(sqlite3.connect(path)) as connection:
            return {row[0]: row[1:] for row in connection.execute(query)}

    def due_nano(self) -> int:
        """Of a job that the buyer died in the middle of, more may have reached the caller than was signed for."""
        costs = {row.request_id: row.cost_nano for row in self.market.rows()}
        channels = self.channels().items()
        return sum(max(amount, costs.get(name, 0)) if died else amount for name, (amount, died) in channels)

    async def are_even(self) -> None:
        """To the nano."""
        due_nano = self.due_nano()
        assert self.market.accrued_nano() == due_nano
        charged_nano = sum(row.charge_nano for row in self.market.rows())
        assert self.market.variance_nano() == due_nano - charged_nano
        found = await self.market.running.services.ledger.inspection.inspect()
        assert [finding.rule for finding in found] == []

    async def hang_up(self, events: int, **fields: Any) -> None:
        """Go away after so many events."""
        fields = {"model": "mill-1b", "stream": True, **ASKED, **fields}
        reader, writer = await send(self.market.running, self.market.key, **fields)
        for _ in range(events):
            await reader.readuntil(b"data: ")
        writer.close()

    async def have_room(self) -> None:
        """Wait until the buyer has noticed the hang-up, and the gateway knows."""
        async with asyncio.timeout(60):
            while msgspec.json.decode(await self.lane.ask_buyer("GET", "/healthz"))["in_flight"]:
                await asyncio.sleep(0.02)
            now = msgspec.json.decode(await self.lane.ask_buyer("GET", "/offers"), type=Offers)
            while self.lane.told.version < now.version:
                await asyncio.sleep(0.02)

    async def die(self) -> None:
        """The buyer's process, at once."""
        (pid,) = self.lane._buyer.pids
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            while self.lane._buyer.pids in ([], [pid]) or not self.lane.offers("mill-1b"):
                await asyncio.sleep(0.05)


async def test_the_ledger_owes_what_the_channels_say(tmp_path: Path) -> None:
    async with fair(tmp_path, {}) as market:
        await market.on_offer(1)
        accounts, (ann,) = Accounts(market), market.sellers
        await bought_by_one_who_died(accounts)
        # Callers who hang up anywhere, before the first word and behind the last one among them.
        chance = random.Random(1)
        ann.manners = Manners(chunk_s=0.02)
        for _ in range(3):
            await asyncio.gather(*(accounts.hang_up(chance.randrange(8)) for _ in range(4)))
            await accounts.have_room()
        # Whole answers whose seller dies are charged as far as they came, and one is all there.
        for at in (1, 4):
            ann.manners = Manners(fault="cut", at=at)
            assert (await market.ask(stream=False)).status == 200
        ann.manners = Manners()
        assert (await market.ask(stream=False)).status == 200
        await nothing_is_left(market.running, 5)
        await until(lambda: len(market.rows()) == 15, 60)
        lacking_nano = accounts.due_nano() - market.accrued_nano()
        assert lacking_nano >= due_nano(ann, ANSWER, ASKED), "one whose gateway died"
        # What the buyer has to tell is told by the next one, too; it signs for what the dead one had written down.
        ann.manners = Manners(chunk_s=0.2)
        reader, writer = await send(market.running, market.key, model="mill-1b", stream=True, **ASKED)
        await reader.readuntil(b"grinds")
        await accounts.die()
        writer.close()
        cut = await market.row(15)
        assert (accounts.channels()[cut.request_id], cut.cost_nano > 0) == ((0, 1), True)
        # The answer to the buyer gets lost: the ledger books it once.
        accounts.is_deaf = True
        with pytest.raises(OSError, match="died"):
            await accounts.book()
        accounts.is_deaf = False
        await accounts.book_until_told(LOST)
        assert await accounts.book() == 0, "that one may be about to end"
        assert await accounts.book(lost_after_s=-1) == 1
        await accounts.are_even()
        assert await accounts.told() == []


async def test_what_has_begun_ends_though_its_caller_leaves_again_and_again() -> None:
    may_end, ended = asyncio.Event(), list[str]()

    async def sign() -> None:
        await may_end.wait()
        ended.append("signed")

    signing = asyncio.create_task(shielded(sign()))
    for _ in range(2):
        await asyncio.sleep(0)
        signing.cancel()
    await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await signing
    assert ended == ["signed"]


async def bought_by_one_who_died(accounts: Accounts) -> None:
    """A request with no usage row, as a gateway leaves it that is killed before it has written one."""
    (offer,) = accounts.lane.offers("mill-1b")
    assert offer.price
    path = accounts.lane._buyer.socket_path
    headers = {
        "x-request-id": LOST,
        "x-millrace-listing": offer.price.source,
        "x-millrace-ceiling-nano": "1000000000",
    }
    body = {"model": "mill-1b", "max_tokens": 64, **ASKED}
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path))) as client:
        answered = await client.post("http://buyer/v1/chat/completions", json=body, headers=headers, timeout=60)
    assert answered.status_code == 200

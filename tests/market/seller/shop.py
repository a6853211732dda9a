"""A whole seller on a real socket, beside a staged gateway and marketplace."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from market.network.identity import OwnIdentity
from market.protocol.channels.channel import Channel
from market.protocol.channels.evidence import read_evidence
from market.protocol.channels.terms import ChannelTerms
from market.protocol.records.envelope import Record, open_record
from market.seller.agent import Agent, open_agent
from market.seller.own_gateway import OwnGateway
from market.seller.process import listening, serving
from market.seller.reach import Reach
from market.settings.seller import SellingSettings
from runtime.data_folder import DataFolder
from runtime.times import now_ms
from tests.market.parties import STANDING
from tests.market.seller.buyer import Buyer
from tests.market.seller.stage import MODEL, Stage, staged

SOLD = {"model": MODEL, "id": "test/demo", "prompt_usd_per_mtok": "50.00", "completion_usd_per_mtok": "200.00"}
T = TypeVar("T")


async def until(look: Callable[[], T | None], timeout_s: float = 60.0) -> T:
    async with asyncio.timeout(timeout_s):
        while not (found := look()):
            await asyncio.sleep(0.01)
    return found


@dataclass
class Shop:
    agent: Agent
    stage: Stage
    endpoint: str

    async def known(self, terms: ChannelTerms) -> Channel:
        """What the seller has on disk of a channel."""
        kept = await self.agent.submitting.store.evidence(terms.channel)
        return read_evidence(map(open_record, kept), terms, STANDING)

    async def is_empty(self) -> None:
        """Returns when no job runs any more."""
        async with asyncio.timeout(60):
            await self.agent.job_handler.admission.is_empty.wait()

    @property
    def listings(self) -> list[Record]:
        """What the seller lists now, by its own book of records."""
        keeper = self.agent.watch.keeper
        now_ms = time.time_ns() // 10**6
        return [record for record, listing in keeper.listings(now_ms) if listing.is_ready]

    async def listed(self) -> Record:
        """A listing of this start, as the seller tells others."""
        live_listings = self.agent.job_handler.live_listings
        return await until(lambda: next((each for each in self.listings if live_listings.find(each.digest)), None))

    async def buyer(self, name: str = "buyer", **given: Any) -> Buyer:
        made_ms = time.time_ns() // 10**6
        return Buyer(self.endpoint, await self.listed(), self.agent.own.id, name, made_ms=made_ms, **given)


@asynccontextmanager
async def open_shop(folder: Path, **settings: Any) -> AsyncIterator[Shop]:
    """A seller that serves, for the length of the block."""
    async with staged() as stage, shop_beside(stage, folder, **settings) as shop:
        yield shop


@asynccontextmanager
async def shop_beside(
    stage: Stage, folder: Path, clock_ms: Callable[[], int] = now_ms, **settings: Any
) -> AsyncIterator[Shop]:
    given = {
        "models": (SOLD,),
        "marketplace_url": stage.url,
        "allows_loopback": True,
        "tunnel": "loopback",
        "submit_s": 3600,
    }
    own_settings = SellingSettings(**(given | {"queue_empty_minutes": 0, "drain_s": 5} | settings))
    own = OwnIdentity.open(folder / "market")
    with listening(0) as listener:
        async with (
            open_agent(
                own_settings, DataFolder(folder), own, OwnGateway(lambda: stage.running), clock_ms
            ) as agent,
            serving(agent.app, listener),
        ):
            endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
            agent.reaches.tell(Reach(True, endpoint))
            working = asyncio.create_task(agent.run())
            try:
                if agent.submitting.marketplace and stage.marketplace_is_up:
                    marketplace = agent.submitting.marketplace
                    await until(lambda: marketplace.identity)
                yield Shop(agent, stage, endpoint)
            finally:
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)

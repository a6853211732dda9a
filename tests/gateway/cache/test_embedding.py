"""The gateway's own questions take no slot that is another's, and who is busy is not taken for broken."""

import asyncio
from dataclasses import replace

import pytest

from gateway.cache.embedding import Embedder
from gateway.errors import LaneBusy
from gateway.lanes.base import Answer, Call, Offer
from gateway.lanes.body import BytesBody
from gateway.routing.health import LaneHealth
from gateway.routing.queueing.turns import Turns
from gateway.routing.router import Router
from gateway.settings import RoutingSettings
from tests.gateway.routing.offers import FixedLane, caller

pytestmark = pytest.mark.anyio

DESK = Offer("pool", "desk", "e", slots=1)


class Desk(FixedLane):
    """Answers with one vector, unless it is busy."""

    is_busy = False
    content = b'{"data":[{"embedding":[1.0,0.5]}]}'

    async def open(self, call: Call, offer: Offer, _wait_s: float = 0.0) -> Answer:
        await asyncio.sleep(0.01)
        if self.is_busy:
            raise LaneBusy("loading", retry_after_s=1)
        return Answer(200, "application/json", BytesBody(self.content))


async def test_no_slot_is_taken_from_others_and_busy_is_not_broken() -> None:
    desk, turns, health = Desk("pool", DESK, replace(DESK, backend="other", model="f")), Turns(), LaneHealth()
    router = Router({"pool": desk}, health, RoutingSettings(fallbacks={"e": ("f",)}))
    embed = Embedder(router, {"pool": desk}, turns, "e")
    both = await asyncio.gather(*(embed(caller(), "public", "Who?") for _ in range(2)))
    assert both == [[1.0, 0.5], None]  # one slot, and no fallback's vectors
    assert turns.has_room(DESK.label, 1)
    record = health.of(DESK.label)
    assert (record.in_flight, record.breakers.of("e").failures_in_row) == (0, 0)
    desk.content = b'{"data":[]}'
    assert await embed(caller(), "public", "Who?") is None
    desk.is_busy = True
    assert await embed(caller(), "public", "Who?") is None
    assert (record.in_flight, record.breakers.of("e").failures_in_row) == (0, 0)
    assert record.breakers.barring("e", health.now_s())  # it asked for a pause

"""A backend that is slow to begin gets company from an idle one: the earlier answers, the later is stopped."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.lanes.base import Answer, Call, Meter, Offer
from gateway.lanes.body import BytesBody
from gateway.requests.hedging import are_equal
from gateway.routing.patience import Patience
from gateway.settings import RoutingSettings
from tests.gateway.http.edges import Backend, Edge, Writer, backend, until, whole
from tests.gateway.requests.roads import ANSWER, left, nothing_is_left, receive, road, send
from tests.gateway.routing.offers import MARKET, POOL

pytestmark = pytest.mark.anyio

SECOND = ANSWER.replace(b"ok", b"second")


class Moody:
    """Answers at once, or late, or never while it is stuck."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.is_stuck = False
        self.is_late = False
        self.fails = False

    async def __call__(self, body: bytes, writer: Writer) -> None:
        if self.is_stuck:
            await asyncio.Event().wait()
        if self.fails or self.is_late:
            await asyncio.sleep(1.5)
        if self.fails:
            writer.write(whole(b"{}", b"500 No"))
        else:
            writer.write(whole(self.content))


@asynccontextmanager
async def two(tmp_path: Path, **sections: Any) -> AsyncIterator[tuple[Edge, Moody, Backend, Backend]]:
    """The first is asked as long as it answers, and it is known how long it mostly takes."""
    moody, lonely = Moody(ANSWER), Moody(SECOND)
    async with (
        backend(moody) as one,
        backend(lonely) as other,
        road(tmp_path, one.base_url, other.base_url, **sections) as running,
    ):
        # The second one weighs little: it is never asked first.
        pool: Any = running.services.lanes["pool"]
        light = pool.pool.find("second")
        light.settings = light.settings.model_copy(update={"weight": 0.01})
        light._renew()
        # On a slow machine it may be asked beside the first.
        lonely.is_stuck = True
        for _ in range(24):
            assert (await receive(await send(running))).content == ANSWER
        await until(lambda: other.open == 0)
        lonely.is_stuck = False
        other.requests.clear()
        yield running, moody, one, other


async def test_who_begins_first_answers_and_the_other_is_stopped(tmp_path: Path) -> None:
    async with two(tmp_path) as (running, moody, one, other):
        moody.is_stuck = True
        answered = await receive(await send(running))
        assert answered.content == SECOND
        assert answered.headers["x-millrace-reason"].startswith("pool:second took over from pool:first")
        assert len(other.requests) == 1
        await until(lambda: one.open == 0)
        await nothing_is_left(running)
        assert running.services.metrics.hedges.labels("won").value == 1
        assert running.services.health.of("pool:first").breakers.of("m").failures_in_row == 0


async def test_no_more_than_a_few_in_a_hundred_are_asked_of_a_second_one(tmp_path: Path) -> None:
    async with two(tmp_path, pool={"first_byte_s": 2.0}) as (running, moody, _, _):
        moody.is_stuck = True
        asking = [await send(running) for _ in range(12)]
        assert {(await receive(connection)).content for connection in asking} == {SECOND}
        assert running.services.metrics.hedges.labels("won").value <= 3
        await nothing_is_left(running)


async def test_a_slow_failure_finds_the_second_one_at_work(tmp_path: Path) -> None:
    async with two(tmp_path) as (running, moody, _, other):
        moody.fails = True
        assert (await receive(await send(running))).content == SECOND
        assert len(other.requests) == 1
        await nothing_is_left(running)


async def test_who_hangs_up_stops_both(tmp_path: Path) -> None:
    async with two(tmp_path) as (running, moody, one, other):
        moody.is_stuck = True
        stuck: Any = other.answer
        stuck.is_stuck = True
        _, writer = await send(running)
        await until(lambda: other.open == 1)
        assert one.open == 1
        writer.close()
        await until(lambda: one.open == other.open == 0)
        await nothing_is_left(running)


class Noted(BytesBody):
    is_closed = False

    async def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("hangs_up", [True, False])
async def test_nobody_waits_for_the_one_that_is_stopped_and_nothing_of_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs_up: bool
) -> None:
    """It takes its time to stop, and has begun to answer when it does."""
    go_on, body = asyncio.Event(), Noted(SECOND)
    async with two(tmp_path) as (running, moody, _, other):
        lane = running.services.lanes["pool"]
        open_ = lane.open

        async def slow_to_stop(call: Call, offer: Offer, wait_s: float) -> Answer:
            try:
                return await open_(call, offer, wait_s)
            except asyncio.CancelledError:
                await go_on.wait()
                return Answer(200, "application/json", body, Meter())

        monkeypatch.setattr(lane, "open", slow_to_stop)
        moody.is_late = True
        stuck: Any = other.answer
        stuck.is_stuck = True
        connection = await send(running)
        await until(lambda: other.open == 1)
        await until(lambda: other.open == 0)
        if hangs_up:
            connection[1].close()
            await asyncio.sleep(0.1)
        else:
            assert (await receive(connection)).content == ANSWER
        go_on.set()
        await nothing_is_left(running)
        assert body.is_closed


@pytest.mark.parametrize("why", ["busy", "less cleared", "switched off"])
async def test_nobody_is_asked_who_may_not_or_has_no_room(tmp_path: Path, why: str) -> None:
    routing = RoutingSettings(hedging=why != "switched off")
    async with two(tmp_path, routing=routing) as (running, moody, _, other):
        pool: Any = running.services.lanes["pool"]
        light = pool.pool.find("second")
        if why == "less cleared":
            light.settings = light.settings.model_copy(update={"clearance": "internal"})
        if why == "busy":
            light.settings = light.settings.model_copy(update={"slots": 1})
            assert running.services.turns.try_take("pool:second", 1)
        light._renew()
        moody.is_stuck = True
        _, writer = await send(running)
        await asyncio.sleep(0.5)
        assert not other.requests
        writer.close()
        await until(lambda: left(running) == (why == "busy"))


def test_nobody_who_charges_is_asked_beside_another_or_has_another_beside_it() -> None:
    other = replace(POOL, backend="other")
    ann, bob = (replace(MARKET, backend=name, clearance=POOL.clearance) for name in ("ann", "bob"))
    assert are_equal(POOL, other)
    for first, second in ((ann, bob), (POOL, ann), (ann, POOL), (POOL, POOL), (POOL, replace(other, model="n"))):
        assert not are_equal(first, second)


def test_the_share_of_second_questions_is_bounded() -> None:
    patience, asked = Patience(), 0
    for _ in range(1000):
        patience.of(POOL, is_stream=True)
        asked += patience.spend()
    assert asked <= 55

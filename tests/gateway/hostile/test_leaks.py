"""What hangs up, breaks off or is refused takes nothing along: places, tickets, holds, tasks, connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from accounting.metering.prices import PricedModel
from accounting.money import Price
from gateway.lanes.base import Answer, Call, Lane, Offer
from gateway.lanes.relay import relay
from gateway.lanes.upstream import Upstream
from gateway.quota import Quota
from gateway.routing import breaker
from gateway.settings import LaneName
from runtime.http import client as upstream_client
from runtime.http.client import Client
from tests.gateway.http.edges import (
    DONE,
    SSE,
    Backend,
    Edge,
    Writer,
    backend,
    chunk,
    edge,
    question,
    said,
    served,
    until,
    whole,
    with_lanes,
)

pytestmark = pytest.mark.anyio

PLACES = 400
CHAT = b'{"choices": [{"index": 0, "message": {"content": "ok"}, "finish_reason": "stop"}]}'


async def as_told(body: bytes, writer: Writer) -> None:
    """Breaks off, goes on for ever, fails, answers garbage or says nothing, as the `user` says."""
    if b'"endless"' in body:
        writer.write(SSE + chunk(said("one")))
        await asyncio.Event().wait()
    elif b'"silent"' in body:
        await asyncio.Event().wait()
    elif b'"breaks"' in body:
        writer.write(SSE + chunk(said("one")))
        await writer.drain()
        writer.transport.abort()
    elif b'"odd"' in body:
        writer.write(whole(CHAT[:-1] + b', "usage": {"x": "\xff"}}'))
    elif b'"stream": true' in body:
        writer.write(SSE + chunk(said("one")) + chunk(said("two", "stop")) + chunk(DONE) + b"0\r\n\r\n")
    else:
        writer.write(whole(CHAT))


class PaidLane:
    """One provider with a price."""

    name: LaneName = "cloud"

    def __init__(self, base_url: str, client: Client) -> None:
        self._upstream = Upstream("paid", client, base_url, silence_s=5.0, is_paid=True)

    def models(self) -> list[str]:
        return ["paid"]

    def offers(self, model: str) -> list[Offer]:
        price = PricedModel("cloud", "paid", "test", Price(10, 0, 20), "acme", max_output_tokens=10)
        return [Offer("cloud", "cloud", model, price=price)] if model == "paid" else []

    async def open(self, call: Call, offer: Offer, _wait_s: float = 0.0) -> Answer:
        return await relay(self._upstream, call, call.raw)


@asynccontextmanager
async def limited(tmp_path: Path) -> AsyncIterator[tuple[Edge, Backend]]:
    """An edge before a free and a paid lane, whose caller has limits of every kind."""
    client = Client()
    async with backend(as_told) as desk, edge(tmp_path, desk.base_url) as first:
        await first.services.ledger.credit("c1", "owner", 10**12, "test")
        lanes: dict[LaneName, Lane] = {
            "pool": first.services.lanes["pool"],
            "cloud": PaidLane(desk.base_url, client),
        }
        services = with_lanes(first.services, lanes)
        for quota in (
            Quota("user:owner", "concurrency", PLACES),
            Quota("user:owner", "requests", 10**6, "minute"),
            Quota("user:owner", "tokens", 10**9, "day"),
            Quota("user:owner", "spend", 10**12, "day"),
        ):
            services.directory.quotas.set(quota)
        async with served(services) as running:
            yield running, desk
        await client.close()


async def crowd(running: Edge, desk: Backend, count: int) -> None:
    """So many at once, of every kind; those that would wait hang up, by a reset or an end."""
    users = ("endless", "silent", "breaks", "odd", "good")
    made = []
    for number in range(count):
        reader, writer = await running.connect()
        fields = {"user": users[number % 5], "stream": number % 5 in (0, 2), "max_tokens": 5}
        writer.write(running.request(question(model="paid" if number % 2 else "m", **fields)))
        made.append((reader, writer))
    await until(lambda: desk.open >= count // 5)
    for number, (_, writer) in enumerate(made):
        writer.transport.abort() if number % 3 else writer.close()
    await until(lambda: desk.open == 0, 60)
    await until(lambda: running.services.admission.in_flight == 0, 60)


async def test_a_crowd_takes_nothing_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Whom a pause turns away comes no further: on a slow machine that would be most of them.
    monkeypatch.setattr(breaker, "BREAK_AFTER", 10**6)
    # Callers, gateway and backend share one loop here: hundreds at once keep it from accepting for seconds.
    monkeypatch.setattr(upstream_client, "CONNECT_S", 60.0)
    async with limited(tmp_path) as (running, desk):
        await crowd(running, desk, 50)
        tasks = len(asyncio.all_tasks())
        for _ in range(3):
            await crowd(running, desk, 300)
        services = running.services
        await until(lambda: not running.server.server_state.connections, 60)
        assert services.admission.in_flight == 0
        assert all(services.health.of(label).in_flight == 0 for label in services.health.labels())
        # Connections kept for the next request have a task at the backend; they go after some seconds.
        await until(lambda: len(asyncio.all_tasks()) <= tasks + 3)
        # Each had a place among PLACES: had one in ten kept it, these would not all be served.
        statuses = await asyncio.gather(*(running.ask(user="good") for _ in range(PLACES // 2)))
        assert {answered.status for answered in statuses} == {200}
        held = (await services.ledger.balance("owner")).held_nano
        for _ in range(100):
            if held:
                await asyncio.sleep(0.05)
                held = (await services.ledger.balance("owner")).held_nano
        assert held == 0

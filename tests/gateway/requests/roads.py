"""A gateway before a few backends, with the settings that a test is about, and how to see that nothing is left."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from accounting.metering.prices import PricedModel
from accounting.money import Price
from gateway.app import open_services
from gateway.lanes.base import Answer, Call, Lane, Offer
from gateway.lanes.relay import relay
from gateway.lanes.upstream import Upstream
from gateway.settings import LaneName, PoolBackend, PoolSettings, Settings
from runtime.http.client import Client
from tests.databases import prepared
from tests.gateway.http.edges import (
    DONE,
    SSE,
    Answered,
    Edge,
    Reader,
    Writer,
    chunk,
    question,
    said,
    served,
    until,
    with_lanes,
)

ANSWER = json.dumps({"choices": [{"index": 0, "message": {"content": "ok"}, "finish_reason": "stop"}]}).encode()
PRICE = PricedModel("cloud", "m", "test", Price(0, 0, 10**6), "acme", max_output_tokens=10)
NAMES = ("first", "second", "third")


@asynccontextmanager
async def road(
    tmp_path: Path, *base_urls: str, backend: dict[str, Any] | None = None, **sections: Any
) -> AsyncIterator[Edge]:
    """`backend` are further fields of every pool backend, `sections` those of the settings; `pool` is patience."""
    fields = {"models": ("m",), "kind": "openai"} | (backend or {})
    pool = sections.pop("pool", {})
    backends = tuple(
        PoolBackend(name=name, base_url=url, **fields) for name, url in zip(NAMES, base_urls, strict=False)
    )
    settings = Settings(data_dir=tmp_path, pool=PoolSettings(backends=backends, **pool), **sections)
    async with open_services(settings, prepared(tmp_path)) as services, served(services) as running:
        yield running


async def send(running: Edge, key: str | None = None, **fields: Any) -> tuple[Reader, Writer]:
    """A request on a connection of its own; its client may read the answer or disconnect."""
    reader, writer = await running.connect()
    raw = running.request(question(**fields), b"connection: close\r\n")
    writer.write(raw.replace(running.key.encode(), key.encode()) if key else raw)
    return reader, writer


async def receive(connection: tuple[Reader, Writer], within_s: float = 60.0) -> Answered:
    reader, writer = connection
    try:
        return Answered.read_from(await asyncio.wait_for(reader.read(), within_s))
    finally:
        writer.close()


def left(running: Edge) -> int:
    """Whatever requests take, and must have given back."""
    services = running.services
    records = [services.health.of(label) for label in services.health.labels()]
    return (
        services.admission.in_flight
        + sum(record.in_flight + record.waiting + record.speaking for record in records)
        + sum(line.serving for line in services.turns._lines.values())
        + services.turns.all_waiting
        + len(services.answers._flights)
        + len(running.server.server_state.tasks)
    )


async def nothing_is_left(running: Edge, within_s: float = 60.0) -> None:
    await until(lambda: left(running) == 0, within_s)


def stream(*texts: str) -> bytes:
    """A whole answer's bytes."""
    events = [said(text) for text in texts[:-1]] + [said(texts[-1], "stop"), DONE]
    return SSE + b"".join(map(chunk, events)) + b"0\r\n\r\n"


def text_of(answered: Answered) -> str:
    """What a stream said."""
    events = [json.loads(event) for event in answered.events if event != b"[DONE]"]
    return "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event.get("choices"))


class PaidLane:
    """A provider at that address, for one model, at a price."""

    name: LaneName = "cloud"

    def __init__(self, base_url: str, model: str, price: PricedModel, patience_s: float = 60.0) -> None:
        self.client = Client()
        self._patience_s = patience_s
        self._base_url = base_url
        self._model = model
        self._price = price

    def models(self) -> list[str]:
        return [self._model]

    def offers(self, model: str) -> list[Offer]:
        return [Offer("cloud", "acme", model, price=self._price)] if model == self._model else []

    async def open(self, call: Call, offer: Offer, _wait_s: float = 0.0) -> Answer:
        patience_s = self._patience_s
        upstream = Upstream(
            "acme", self.client, self._base_url, first_byte_s=patience_s, silence_s=patience_s, is_paid=True
        )
        return await relay(upstream, call, call.raw)


@asynccontextmanager
async def with_paid_lane(
    running: Edge,
    base_url: str,
    model: str,
    *,
    price: PricedModel | None = None,
    credit_nano: int = 10**9,
    patience_s: float = 60.0,
) -> AsyncIterator[Edge]:
    """The same gateway with a provider beside its pool, and a dollar to pay it."""
    services, cloud = running.services, PaidLane(base_url, model, price or PRICE, patience_s)
    lanes: dict[LaneName, Lane] = {**services.lanes, "cloud": cloud}
    await services.ledger.credit("c1", "owner", credit_nano, "test")
    try:
        async with served(with_lanes(services, lanes)) as other:
            yield other
    finally:
        await cloud.client.close()

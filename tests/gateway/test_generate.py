"""The hot route inside one process: what a client that leaves, a busy backend or a silent one leaves behind."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accounting.money import Price
from accounting.prices import PricedModel
from gateway.api.generate import GenerateEndpoint
from gateway.app import open_services
from gateway.data_folder import DataFolder
from gateway.errors import LaneBrokeOff, LaneFailed, LaneUnreachable
from gateway.lanes.base import Answer, Call, Lane, Offer
from gateway.openai import read_request
from gateway.routing.router import Router
from gateway.services import Services
from gateway.settings import LaneName, PoolBackend, PoolSettings, Settings
from tests.fakes import openai_provider as provider
from tests.fakes.provider_server import ProviderServer

pytestmark = pytest.mark.anyio
Message = dict[str, Any]
MODELS = ("fake", "fake.late", "fake.rate-limited", "fake.overloaded", "fake.stalls")


@pytest.fixture(scope="module")
def desk() -> Iterator[ProviderServer]:
    with provider.openai_provider() as server:
        yield server


@asynccontextmanager
async def serving(tmp_path: Path, base_url: str, **pool: float) -> AsyncIterator[Services]:
    backend = PoolBackend(name="desk", base_url=base_url, api_key=provider.KEY, models=MODELS)
    settings = Settings(data_dir=tmp_path, pool=PoolSettings(backends=(backend,), **pool))
    folder = DataFolder(tmp_path)
    folder.prepare()
    async with open_services(settings, folder) as services:
        yield services


class Client:
    """One ASGI exchange of a client that leaves when it is sent a message of the type `leaves_at`."""

    def __init__(
        self, services: Services, lanes: tuple[LaneName, ...], body: Message, leaves_at: str = ""
    ) -> None:
        self._services = services
        self._token = services.keys.create("test", lanes)
        self._body: bytes | None = json.dumps(body).encode()
        self._leaves_at = leaves_at
        self.sent: list[Message] = []

    async def ask(self) -> None:
        headers = [(b"authorization", f"Bearer {self._token}".encode())]
        scope = {"type": "http", "headers": headers}
        await GenerateEndpoint(self._services, "chat")(scope, self._receive, self._send)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def content(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    async def _receive(self) -> Message:
        if self._body is None:
            await asyncio.Event().wait()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)
        if message["type"] == self._leaves_at:
            raise ConnectionResetError


def question(model: str, **fields: Any) -> Message:
    return {"model": model, "messages": [{"role": "user", "content": "Hi"}], **fields}


async def test_a_client_that_leaves_before_the_body_leaves_nothing_behind(
    tmp_path: Path, desk: ProviderServer
) -> None:
    async with serving(tmp_path, f"{desk.origin}/v1") as services:
        client = Client(services, ("pool",), question("fake.stalls", stream=True), leaves_at="http.response.start")
        with pytest.raises(ConnectionResetError):
            await client.ask()
        assert services.admission.in_flight == 0
        assert services.health.of("pool:desk").in_flight == 0
        await asyncio.to_thread(desk.wait_until, "fake.stalls", "cancelled")


async def test_proxies_are_told_not_to_gather_a_stream(tmp_path: Path, desk: ProviderServer) -> None:
    async with serving(tmp_path, f"{desk.origin}/v1") as services:
        client = Client(services, ("pool",), question("fake", stream=True))
        await client.ask()
        assert client.headers[b"cache-control"] == b"no-cache"
        assert client.headers[b"x-accel-buffering"] == b"no"


@pytest.mark.parametrize(
    ("model", "status", "retry_after"), [("rate-limited", 429, b"7"), ("overloaded", 503, b"3")]
)
async def test_a_busy_backend_is_not_a_broken_one(
    tmp_path: Path, desk: ProviderServer, model: str, status: int, retry_after: bytes
) -> None:
    async with serving(tmp_path, f"{desk.origin}/v1") as services:
        for _ in range(4):
            client = Client(services, ("pool",), question(f"fake.{model}"))
            await client.ask()
            assert client.status == status
            assert client.headers[b"retry-after"] == retry_after
        assert services.health.of("pool:desk").failures_in_row == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_silence_counts_from_the_first_byte_on(tmp_path: Path, desk: ProviderServer, stream: bool) -> None:
    async with serving(tmp_path, f"{desk.origin}/v1", silence_s=0.3, first_byte_s=20) as services:
        late = Client(services, ("pool",), question("fake.late", stream=stream))
        await late.ask()
        assert late.status == 200
        assert b"night." in late.content
        stalls = Client(services, ("pool",), question("fake.stalls", stream=True))
        await stalls.ask()
        assert b"sent nothing for" in stalls.content
        assert b"[DONE]" not in stalls.content


async def test_what_was_sent_and_broke_off_is_not_called_unreachable(tmp_path: Path) -> None:
    async def read_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(read_and_close, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with serving(tmp_path, f"http://127.0.0.1:{port}/v1") as services:
        call = Call("req_1", "chat", read_request("chat", json.dumps(question("fake")).encode()), b"{}")
        offer = Offer("pool", "desk", "fake")
        with pytest.raises(LaneBrokeOff, match="had the request"):
            await services.lanes["pool"].open(call, offer)
        server.close()
        await server.wait_closed()
        with pytest.raises(LaneUnreachable):
            await services.lanes["pool"].open(call, offer)


class TwoProviders:
    """A paid lane of two providers that both fail in one way; counts how often it is asked."""

    name: LaneName = "cloud"

    def __init__(self, failure: LaneFailed, *, dearer: int = 1) -> None:
        self._failure = failure
        self._dearer = dearer
        self.asked = 0

    def models(self) -> list[str]:
        return ["twin"]

    def offers(self, model: str) -> list[Offer]:
        prices = {"first": Price(0, 0, 10**9), "second": Price(0, 0, self._dearer * 10**9)}
        return [
            Offer(
                "cloud",
                name,
                model,
                price=PricedModel("cloud", "twin", "test", price, "acme", max_output_tokens=10),
            )
            for name, price in prices.items()
        ]

    async def open(self, call: Call, offer: Offer) -> Answer:
        self.asked += 1
        raise self._failure


def _with_cloud(services: Services, cloud: Lane) -> Services:
    """The same gateway with no lane but this one."""
    lanes: dict[LaneName, Lane] = {"cloud": cloud}
    return replace(services, lanes=lanes, router=Router(lanes, services.health, services.settings.routing))


@pytest.mark.parametrize(
    ("failure", "asked"),
    [(LaneUnreachable("x"), 2), (LaneFailed("x answered 500"), 2), (LaneBrokeOff("x"), 1)],
)
async def test_paid_work_is_not_asked_for_twice(tmp_path: Path, failure: LaneFailed, asked: int) -> None:
    async with serving(tmp_path, "http://127.0.0.1:9/v1") as services:
        providers = TwoProviders(failure)
        await services.books.credit("c1", "owner", 10**9, "test")
        client = Client(_with_cloud(services, providers), ("cloud",), question("twin"))
        await client.ask()
        assert client.status == 502
        assert providers.asked == asked


async def test_a_hold_is_not_spent_on_a_dearer_provider(tmp_path: Path) -> None:
    async with serving(tmp_path, "http://127.0.0.1:9/v1") as services:
        providers = TwoProviders(LaneUnreachable("x"), dearer=2)
        await services.books.credit("c1", "owner", 10**9, "test")
        await Client(_with_cloud(services, providers), ("cloud",), question("twin")).ask()
        assert providers.asked == 1

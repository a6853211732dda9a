"""A gateway's own edge inside the test's process, over real sockets, and backends that answer as they are told."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import uvicorn

from cluster.trust.addresses import Target
from gateway.app import Services, create_app, make_generate_handler, open_services
from gateway.http.hot import HotProtocol
from gateway.lanes.base import Lane
from gateway.requests.factory import build_request_paths
from gateway.routing.router import Router
from gateway.settings import LaneName, PoolBackend, PoolSettings, Settings
from tests.databases import prepared

Reader: TypeAlias = asyncio.StreamReader
Writer: TypeAlias = asyncio.StreamWriter
Answers = Callable[[bytes, Writer], Awaitable[None]]

SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


@dataclass
class Backend:
    """One server of raw answers; `answer` gets each whole request and writes what it likes."""

    answer: Answers
    port: int = 0
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    """How many brought requests; a pool's questions about models have their own."""
    open: int = 0
    """Requests that are being answered."""
    models: bytes = b'{"data":[{"id":"m"}]}'

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def handle(self, reader: Reader, writer: Writer) -> None:
        has_asked = False
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    (line[15:] for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), b"0"
                )
                body = await reader.readexactly(int(length))
                if head.startswith(b"POST"):
                    self.requests.append(body)
                    self.connections += not has_asked
                    has_asked = True
                    await self._answer(body, reader, writer)
                else:
                    writer.write(whole(self.models))
                if writer.is_closing():
                    return
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, body: bytes, reader: Reader, writer: Writer) -> None:
        """The caller may disconnect while the answer is being made."""
        self.open += 1
        try:
            await _while_connected(reader, self.answer(body, writer))
        finally:
            self.open -= 1


async def _while_connected(reader: Reader, answering: Awaitable[None]) -> None:
    task, gone = asyncio.ensure_future(answering), asyncio.create_task(_until_end(reader))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ConnectionResetError
        task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _until_end(reader: Reader) -> None:
    while not reader.at_eof() and not reader.exception():  # a reset is no end
        await asyncio.sleep(0.02)


@asynccontextmanager
async def backend(answer: Answers) -> AsyncIterator[Backend]:
    made = Backend(answer)
    server = await asyncio.start_server(made.handle, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        await server.wait_closed()


def whole(content: bytes, status: bytes = b"200 OK", more: bytes = b"") -> bytes:
    head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n"
    return head % (status, len(content), more) + content


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def said(text: str, finish: str | None = None) -> bytes:
    """An event of a chat's stream."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "x", "choices": [choice]}).encode() + b"\n\n"


@dataclass
class Edge:
    """A running edge, its services and a key for its pool."""

    services: Services
    server: uvicorn.Server
    port: int
    key: str

    async def connect(self) -> tuple[Reader, Writer]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    def request(self, body: bytes, more: bytes = b"", path: bytes = b"/v1/chat/completions") -> bytes:
        head = b"POST %b HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\ncontent-length: %d\r\n%b\r\n"
        return head % (path, self.key.encode(), len(body), more) + body

    async def ask(self, **fields: Any) -> "Answered":
        """One question over a connection of its own."""
        reader, writer = await self.connect()
        writer.write(self.request(question(**fields), b"connection: close\r\n"))
        try:
            return Answered.read_from(await reader.read())
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@dataclass
class Answered:
    status: int
    headers: dict[str, str]
    content: bytes

    @classmethod
    def read_from(cls, raw: bytes) -> "Answered":
        head, _, rest = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        is_chunked = headers.get("transfer-encoding") == "chunked"
        return cls(int(first.split()[1]), headers, _unchunked(rest) if is_chunked else rest)

    @property
    def events(self) -> list[bytes]:
        return [line[6:] for line in self.content.split(b"\n") if line.startswith(b"data: ")]

    @property
    def error(self) -> dict[str, Any]:
        """Of an answer that is one, or of a stream's last event."""
        found: dict[str, Any] = json.loads(self.events[-1] if self.events else self.content)["error"]
        return found


def _unchunked(raw: bytes) -> bytes:
    parts = []
    while raw:
        size, _, raw = raw.partition(b"\r\n")
        length = int(size, 16)
        parts.append(raw[:length])
        raw = raw[length + 2 :]
    return b"".join(parts)


def question(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}]} | fields).encode()


@asynccontextmanager
async def edge(
    tmp_path: Path, *base_urls: str, models: tuple[str, ...] = ("m",), key: str | None = None, **patience: Any
) -> AsyncIterator[Edge]:
    """An edge before a pool of backends called first, second and so on."""
    names = ("first", "second", "third")
    backends = tuple(
        PoolBackend(name=name, base_url=url, models=models, kind="openai", api_key=key)
        for name, url in zip(names, base_urls, strict=False)
    )
    settings = Settings(data_dir=tmp_path, pool=PoolSettings(backends=backends, **patience))
    async with open_services(settings, prepared(tmp_path)) as services, served(services) as made:
        yield made


def with_lanes(services: Services, lanes: dict[LaneName, Lane]) -> Services:
    """The same gateway with other lanes."""
    router = Router(lanes, services.health, services.settings.routing)
    requests = build_request_paths(
        services.settings,
        admission=services.admission,
        afterwork=services.afterwork,
        answers=services.answers,
        audit=services.directory.audit,
        bookkeeper=services.bookkeeper,
        controller=services.controller,
        health=services.health,
        jobs=services.preemptible_jobs,
        lanes=lanes,
        ledger=services.ledger,
        limits=services.limits,
        metrics=services.metrics,
        pool=services.pool.pool,
        router=router,
        turns=services.turns,
    )
    return replace(services, lanes=lanes, router=router, requests=requests)


@asynccontextmanager
async def served(services: Services) -> AsyncIterator[Edge]:
    desk = make_generate_handler(services)
    config = uvicorn.Config(
        create_app(services, Target("127.0.0.1", 1)),
        port=0,
        http=HotProtocol.serving(desk),
        ws="none",
        lifespan="off",
        proxy_headers=False,
        log_config=None,
        limit_concurrency=1000,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Edge(services, server, port, services.keys.create("test", ("pool", "cloud")))
    finally:
        server.should_exit = server.force_exit = True
        await serving


async def until(look: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Raises TimeoutError when it does not come true in time."""
    async with asyncio.timeout(timeout_s):
        while not look():
            await asyncio.sleep(0.01)

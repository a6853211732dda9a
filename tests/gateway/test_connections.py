"""What a caller without a key can hold, over real sockets: little, and not for long."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from runtime.http.connections import HEAD_BYTES_MAX, HEADERS_MAX, PIPELINED_MAX, BoundedProtocol

pytestmark = pytest.mark.anyio

CONNECTIONS_MAX = 8
LARGE = 32 * 2**20
GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Impatient(BoundedProtocol):
    head_s = 0.4
    send_s = 0.4


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """/early does not read its body, /large is more than the kernel keeps for a client that does not read."""
    while scope["path"] != "/early" and (await receive()).get("more_body"):
        pass
    size_bytes = LARGE if scope["path"] == "/large" else 2
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size_bytes)]}
    )
    for start in range(0, size_bytes, 2**16):
        part = b"x" * min(2**16, size_bytes - start)
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body"})


@pytest.fixture
async def server() -> AsyncIterator[uvicorn.Server]:
    config = uvicorn.Config(
        answer,
        port=0,
        http=Impatient,
        ws="none",
        lifespan="off",
        log_config=None,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_keep_alive=60,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield server
    server.should_exit = server.force_exit = True
    await serving


@asynccontextmanager
async def connected(server: uvicorn.Server) -> AsyncIterator[Client]:
    """A client that the server knows of, if it has a place for it."""
    before = len(server.server_state.connections)
    reader, writer = await asyncio.open_connection(*server.servers[0].sockets[0].getsockname())
    while len(server.server_state.connections) == before < CONNECTIONS_MAX - 1:
        await asyncio.sleep(0.01)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def said_to(client: Client, *parts: bytes) -> bytes:
    """Everything that comes back until the server closes or will take no more, which it has to do in time."""
    reader, writer = client
    for part in parts:
        writer.write(part)
    async with asyncio.timeout(30):
        return await reader.read()


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([GET, *[b"x: " + b"a" * 8000 + b"\r\n"] * 20], id="many"),
        pytest.param([GET + b"x: ", *[b"a" * 8000] * 20], id="one that does not end"),
        pytest.param([GET + b"x: " + b"a" * HEAD_BYTES_MAX + b"\r\n\r\n"], id="whole and at once"),
        pytest.param([GET + b"a:b\r\n" * HEADERS_MAX + b"\r\n"], id="many small ones"),
    ],
)
async def test_headers_are_bounded(server: uvicorn.Server, parts: list[bytes]) -> None:
    async with connected(server) as client:
        said = await said_to(client, *parts)
    assert said.startswith(b"HTTP/1.1 431 ")
    assert b'"headers_too_large"' in said
    assert b"x-request-id: req_" in said


async def test_headers_after_the_body_are_bounded(server: uvicorn.Server) -> None:
    async with connected(server) as (_, writer), asyncio.timeout(30):
        writer.write(CHUNKED + b"0\r\nx: " + b"a" * 200_000)
        while server.server_state.connections:
            await asyncio.sleep(0.05)


async def test_a_large_body_is_not_taken_for_headers(server: uvicorn.Server) -> None:
    async with connected(server) as client:
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n"
        assert (await said_to(client, head + b"a" * 4_000_000)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("start", "drip"),
    [
        pytest.param(b"", b"", id="silent"),
        pytest.param(GET + b"x: ", b"a", id="half a head"),
        pytest.param(GET + b"\r\n", b"\r\n", id="after an answer"),
        pytest.param(
            b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n", b"a", id="answered before its body"
        ),
        pytest.param(b"nonsense\r\n\r\n", b"a", id="refused"),
        pytest.param(b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n", b"", id="refused for its target"),
    ],
)
async def test_a_slow_client_is_let_go(server: uvicorn.Server, start: bytes, drip: bytes) -> None:
    async with connected(server) as (_, writer), asyncio.timeout(30):
        writer.write(start)
        while server.server_state.connections:
            await asyncio.sleep(0.05)
            writer.write(drip)


async def test_a_client_that_does_not_read_is_let_go(server: uvicorn.Server) -> None:
    async with connected(server) as (_, writer), asyncio.timeout(30):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        while server.server_state.connections:
            await asyncio.sleep(0.05)


async def test_connections_are_counted(server: uvicorn.Server) -> None:
    async with contextlib.AsyncExitStack() as stack:
        others = [await stack.enter_async_context(connected(server)) for _ in range(CONNECTIONS_MAX - 1)]
        async with connected(server) as refused:
            assert (await said_to(refused)).startswith(b"HTTP/1.1 503 ")
        others[0][1].write(GET + b"\r\n")
        assert (await others[0][0].readline()).startswith(b"HTTP/1.1 200 ")


async def test_requests_ahead_of_their_answers_are_counted(server: uvicorn.Server) -> None:
    async with connected(server) as client:
        received = await said_to(client, (GET + b"\r\n") * (PIPELINED_MAX * 10))
    assert received.count(b"HTTP/1.1 200") <= PIPELINED_MAX + 1

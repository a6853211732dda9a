"""A backend that owes its first bytes for too long is left: another one answers, or the caller is told why not."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from gateway.settings import RoutingSettings
from tests.gateway.http.edges import Edge, Writer, backend, whole
from tests.gateway.requests.roads import (
    ANSWER,
    nothing_is_left,
    receive,
    road,
    send,
    stream,
    text_of,
    with_paid_lane,
)

pytestmark = pytest.mark.anyio

# Own machines first, whatever they take.
OWN_FIRST = RoutingSettings(time_nano_per_s=0, speed_nano_per_s=0)
PAID_TOKENS = 7
PAID = ANSWER[:-1] + b', "usage": {"prompt_tokens": 3, "completion_tokens": %d}}' % PAID_TOKENS
# One that serves models and answers in a process of its own, so that it can be frozen.
SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self, content):
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
    def do_GET(self):
        self.answer(b'{"data": [{"id": "m"}]}')
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.answer(sys.argv[1].encode())
    def log_message(self, *args):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


async def mute(body: bytes, writer: Writer) -> None:
    """Takes requests and says nothing; it still says which models it has."""
    await asyncio.Event().wait()


async def well(body: bytes, writer: Writer) -> None:
    writer.write(stream("ok") if b'"stream": true' in body else whole(ANSWER))


async def provider(body: bytes, writer: Writer) -> None:
    writer.write(whole(PAID))


def prefer_first(running: Edge) -> None:
    """The second one weighs little: it is not asked first."""
    pool: Any = running.services.lanes["pool"]
    light = pool.pool.find("second")
    light.settings = light.settings.model_copy(update={"weight": 0.001})
    light._renew()


@pytest.mark.parametrize("slots", [None, 4])
async def test_a_mute_backend_keeps_nobody_from_an_idle_one(tmp_path: Path, slots: int | None) -> None:
    async with (
        backend(mute) as silent,
        backend(well) as other,
        road(tmp_path, silent.base_url, other.base_url, backend={"slots": slots}) as running,
    ):
        asking = [await send(running, stream=True) for _ in range(40)]
        answers = await asyncio.gather(*(receive(connection, 90) for connection in asking))
        assert [(answer.status, text_of(answer)) for answer in answers] == [(200, "ok")] * 40
        assert silent.requests, "some of them were asked of it first"
        await nothing_is_left(running)


@asynccontextmanager
async def frozen_later() -> AsyncIterator[tuple[int, int]]:
    """Port and process of a server."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, ANSWER.decode(), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout
    try:
        yield int(await asyncio.wait_for(process.stdout.readline(), 60)), process.pid
    finally:
        process.kill()
        await process.wait()


async def freeze(pid: int) -> None:
    """Stop a process. Until its first thread has taken the signal, others of its threads may still answer."""
    os.kill(pid, signal.SIGSTOP)
    async with asyncio.timeout(60):
        while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
            await asyncio.sleep(0.01)


async def test_a_frozen_server_is_left_when_it_answers_no_probe(tmp_path: Path) -> None:
    """The other candidate is not its equal and charges, so nobody is asked beside it, and one is charged once."""
    pool = {"probe_s": 0.5, "probe_timeout_s": 0.5}
    async with (
        frozen_later() as (port, pid),
        backend(provider) as acme,
        road(tmp_path, f"http://127.0.0.1:{port}/v1", pool=pool, routing=OWN_FIRST) as own,
        with_paid_lane(own, acme.base_url, "m") as running,
    ):
        assert (await receive(await send(running))).headers["x-millrace-lane"] == "pool"
        await freeze(pid)
        answered = await receive(await send(running), 90)
        assert (answered.status, answered.headers["x-millrace-lane"]) == (200, "cloud")
        assert len(acme.requests) == 1
        await nothing_is_left(running)
        await spent(running, PAID_TOKENS)


async def spent(running: Edge, nano: int) -> None:
    async with asyncio.timeout(60):
        while (balance := await running.services.ledger.balance("owner")).held_nano:
            await asyncio.sleep(0.05)
    assert 10**9 - balance.available_nano == nano


async def test_half_of_the_time_is_left_for_another_backend(tmp_path: Path) -> None:
    async with (
        backend(mute) as silent,
        backend(well) as other,
        road(tmp_path, silent.base_url, other.base_url) as running,
    ):
        prefer_first(running)
        answered = await receive(await send(running, millrace={"deadline_s": 4}), 90)
        assert answered.content == ANSWER
        assert answered.headers["x-millrace-reason"].startswith("pool:second took over from pool:first")
        # That its caller had little time says nothing against a backend.
        assert not running.services.health.of("pool:first").breakers.of("m").failures_in_row
        await nothing_is_left(running)


async def test_half_of_the_time_is_left_for_a_provider_who_is_paid_once(tmp_path: Path) -> None:
    async with (
        backend(mute) as silent,
        backend(provider) as acme,
        road(tmp_path, silent.base_url, routing=OWN_FIRST) as own,
        with_paid_lane(own, acme.base_url, "m") as running,
    ):
        answered = await receive(await send(running, millrace={"deadline_s": 4}), 90)
        assert (answered.status, answered.headers["x-millrace-lane"]) == (200, "cloud")
        assert (len(silent.requests), len(acme.requests)) == (1, 1)
        await nothing_is_left(running)
        await spent(running, PAID_TOKENS)


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_deadline_ends_the_wait_for_a_backend_with_the_reason(tmp_path: Path, is_stream: bool) -> None:
    async with backend(mute) as silent, road(tmp_path, silent.base_url) as running:
        refused = await receive(await send(running, stream=is_stream, millrace={"deadline_s": 0.5}), 90)
        assert (refused.status, refused.error["code"]) == (504, "deadline_passed")
        assert refused.error["param"] == "millrace.deadline_s"
        assert re.search(r"pool:first had the request for \d+\.\d s", refused.error["message"])
        await nothing_is_left(running)

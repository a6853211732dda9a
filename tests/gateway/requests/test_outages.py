"""Another gateway that cannot be reached: who waits for it, for how long, and what is asked for again."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.requests import outage
from tests.gateway.http.edges import Answers, Backend, Edge, Reader, Writer, backend, until, whole
from tests.gateway.requests.roads import ANSWER, nothing_is_left, receive, road, send

pytestmark = pytest.mark.anyio

GATEWAY = {"kind": "millrace"}


async def well(_: bytes, writer: Writer) -> None:
    writer.write(whole(ANSWER))


async def cut(_: bytes, writer: Writer) -> None:
    writer.close()


async def broken(_: bytes, writer: Writer) -> None:
    writer.write(whole(b'{"error": {"message": "no"}}', b"500 Internal Server Error"))


class Other:
    """A gateway that is started and stopped on one port, with all its connections."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._port = 0
        self._handling: set[asyncio.Task[None]] = set()

    async def start(self, answer: Answers = well) -> Backend:
        now = Backend(answer)

        async def handle(reader: Reader, writer: Writer) -> None:
            task = asyncio.current_task()
            assert task
            self._handling.add(task)
            try:
                await now.handle(reader, writer)
            finally:
                self._handling.discard(task)
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()

        self._server = await asyncio.start_server(handle, "127.0.0.1", self._port)
        self._port = now.port = self._server.sockets[0].getsockname()[1]
        return now

    async def stop(self) -> None:
        if self._server:
            self._server.close()
            handling = list(self._handling)
            for task in handling:
                task.cancel()
            await asyncio.gather(*handling, return_exceptions=True)
            await self._server.wait_closed()
            self._server = None


async def all_wait(running: Edge, count: int) -> None:
    await until(lambda: running.services.turns.all_waiting == count)


@pytest.fixture
async def other() -> AsyncIterator[Other]:
    made = Other()
    try:
        yield made
    finally:
        await made.stop()


async def test_requests_wait_for_a_gateway_that_restarts(tmp_path: Path, other: Other) -> None:
    """Those that found it gone as well as those that came later; each is answered once."""
    desk = await other.start()
    async with road(tmp_path, desk.base_url, backend=GATEWAY) as running:
        assert (await receive(await send(running))).content == ANSWER
        await other.stop()
        asked = [await send(running) for _ in range(8)]
        await all_wait(running, 8)
        later = [await send(running) for _ in range(8)]
        await all_wait(running, 16)
        desk = await other.start()
        for connection in asked + later:
            assert (await receive(connection)).content == ANSWER
        assert len(desk.requests) == 16
        await nothing_is_left(running)


async def test_an_impatient_caller_is_told_why(tmp_path: Path, other: Other) -> None:
    desk = await other.start()
    async with road(tmp_path, desk.base_url, backend=GATEWAY) as running:
        await other.stop()
        refused = [await receive(await send(running, millrace={"deadline_s": 1})) for _ in range(2)]
        assert {answer.status for answer in refused} <= {502, 503}
        assert all("cannot be reached" in answer.error["message"] for answer in refused)
        await nothing_is_left(running)


async def test_one_that_is_gone_for_long_is_not_waited_for(
    tmp_path: Path, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = await other.start()
    async with road(tmp_path, desk.base_url, backend=GATEWAY) as running:
        await other.stop()
        waiting = await send(running)
        await all_wait(running, 1)
        monkeypatch.setattr(outage, "RESTART_S", 0.0)
        assert (await receive(waiting)).status == 502
        refused = await receive(await send(running))
        assert refused.status == 503
        assert "cannot be reached" in refused.error["message"]
        await nothing_is_left(running)


async def test_another_backend_is_asked_at_once(tmp_path: Path, other: Other) -> None:
    desk = await other.start()
    async with backend(well) as spare, road(tmp_path, desk.base_url, spare.base_url, backend=GATEWAY) as running:
        await other.stop()
        for _ in range(4):
            assert (await receive(await send(running))).content == ANSWER
        assert len(spare.requests) == 4
        assert not running.services.turns.all_waiting


@pytest.mark.parametrize("has_cluster", [True, False])
async def test_what_was_cut_is_asked_for_again_only_of_its_own_cluster(
    tmp_path: Path, other: Other, has_cluster: bool
) -> None:
    """Elsewhere the work may be charged twice; and what cuts every request gets no more than three."""
    desk = await other.start(cut)
    models = b'{"data":[{"id":"m","millrace":{"lanes":["cluster"],"weights":"w/bf16"}}]}'
    backend_fields = GATEWAY | {"models": ()}
    desk.models = models if has_cluster else b'{"data":[{"id":"m","millrace":{"lanes":["cloud"]}}]}'
    async with road(tmp_path, desk.base_url, backend=backend_fields) as running:
        answer = await receive(await send(running))
        assert answer.status == 502
        assert len(desk.requests) == (3 if has_cluster else 1)
        await nothing_is_left(running)


async def test_one_that_answers_with_errors_is_not_waited_for(tmp_path: Path, other: Other) -> None:
    desk = await other.start(broken)
    async with road(tmp_path, desk.base_url, backend=GATEWAY) as running:
        for _ in range(5):
            assert (await receive(await send(running))).status in (500, 502, 503)
        assert not running.services.turns.all_waiting
        await nothing_is_left(running)


async def test_failures_of_before_the_restart_count_no_more(tmp_path: Path, other: Other) -> None:
    desk = await other.start(broken)
    async with road(tmp_path, desk.base_url, backend=GATEWAY) as running:
        for _ in range(4):
            await receive(await send(running))
        record = running.services.health.of("pool:first")
        assert record.breakers.barring("m", running.services.health.now_s())
        await other.stop()
        waiting = await send(running, millrace={"deadline_s": 1})
        await receive(waiting)
        pool = running.services.lanes["pool"].pool  # type: ignore[attr-defined]
        pool.doubt("first")
        await until(lambda: pool.find("first").probed.state == "down")
        await other.start()
        pool.doubt("first")
        assert (await receive(await send(running))).content == ANSWER

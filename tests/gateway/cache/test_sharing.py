"""Same questions that arrive together are one question upstream, even if some callers disconnect."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.http.edges import SSE, Writer, backend, chunk, said, until, whole
from tests.gateway.requests.roads import ANSWER, nothing_is_left, receive, road, send, stream, text_of

pytestmark = pytest.mark.anyio

SAME: dict[str, Any] = {"temperature": 0}


class Slow:
    """Answers when it is told to; streams say one word at once."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def __call__(self, body: bytes, writer: Writer) -> None:
        if b'"stream": true' not in body:
            await self.go_on.wait()
            writer.write(whole(ANSWER))
            return
        writer.write(SSE + chunk(said("one ")))
        await self.go_on.wait()
        writer.write(stream("two ", "three").removeprefix(SSE))


@pytest.mark.parametrize("is_stream", [False, True])
async def test_together_they_are_one_question(tmp_path: Path, is_stream: bool) -> None:
    slow = Slow()
    async with backend(slow) as desk, road(tmp_path, desk.base_url) as running:
        asking = [await send(running, stream=is_stream, **SAME) for _ in range(20)]
        other = await send(running, stream=is_stream, temperature=0.5)
        await until(lambda: running.services.admission.in_flight == 21)
        slow.go_on.set()
        answers = [await receive(connection) for connection in asking]
        assert (await receive(other)).content == answers[0].content
        assert len(desk.requests) == 2
        assert len({answered.content for answered in answers}) == 1
        marks = sorted(answered.headers.get("x-millrace-cache", "") for answered in answers)
        assert marks == ["", *["shared"] * 19]
        assert sum(answered.headers["x-millrace-lane"] == "cache" for answered in answers) == 19
        await nothing_is_left(running)


async def test_who_asked_first_may_leave(tmp_path: Path) -> None:
    slow = Slow()
    async with backend(slow) as desk, road(tmp_path, desk.base_url) as running:
        leader = await send(running, stream=True, **SAME)
        await leader[0].readuntil(b"one ")
        followers = [await send(running, stream=True, **SAME) for _ in range(3)]
        for reader, _ in followers:
            await reader.readuntil(b"\r\n\r\n")
        leader[1].close()
        followers[0][1].close()
        await asyncio.sleep(0.1)
        slow.go_on.set()
        for follower in followers[1:]:
            reader, writer = follower
            rest = await asyncio.wait_for(reader.read(), 60)
            assert b"three" in rest
            assert rest.endswith(b"0\r\n\r\n")
            writer.close()
        assert len(desk.requests) == 1
        await nothing_is_left(running)


async def test_when_all_have_left_the_upstream_stops(tmp_path: Path) -> None:
    async with backend(Slow()) as desk, road(tmp_path, desk.base_url) as running:
        asking = [await send(running, stream=True, **SAME) for _ in range(5)]
        for reader, _ in asking:
            await reader.readuntil(b"one ")
        for _, writer in asking:
            writer.close()
        await until(lambda: desk.open == 0)
        await nothing_is_left(running)


async def test_who_leaves_before_the_answer_has_begun_leaves_the_lead_to_the_next(tmp_path: Path) -> None:
    slow = Slow()
    async with backend(slow) as desk, road(tmp_path, desk.base_url) as running:
        leader = await send(running, **SAME)
        await until(lambda: len(desk.requests) == 1)
        followers = [await send(running, **SAME) for _ in range(5)]
        await until(lambda: running.services.admission.in_flight == 6)
        leader[1].close()
        await until(lambda: len(desk.requests) == 2)
        slow.go_on.set()
        assert {(await receive(follower)).content for follower in followers} == {ANSWER}
        assert len(desk.requests) == 2
        await nothing_is_left(running)


async def test_nobody_inherits_a_failure(tmp_path: Path) -> None:
    """Who waited for an answer that failed asks for itself, all at once."""
    asked = 0

    async def fail_first(body: bytes, writer: Writer) -> None:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.1)
        writer.write(whole(b"{}", b"500 No") if asked == 1 else whole(ANSWER))

    async with backend(fail_first) as desk, road(tmp_path, desk.base_url) as running:
        first = await send(running, **SAME)
        await until(lambda: len(desk.requests) == 1)
        followers = [await send(running, **SAME) for _ in range(3)]
        assert (await receive(first)).status == 502
        assert {(await receive(follower)).status for follower in followers} == {200}
        await nothing_is_left(running)


async def test_a_reader_that_lags_does_not_fill_the_memory(tmp_path: Path) -> None:
    sent = 0

    async def pour(body: bytes, writer: Writer) -> None:
        nonlocal sent
        writer.write(SSE)
        for _ in range(1500):
            writer.write(chunk(said("x" * 16_000)))
            await writer.drain()
            sent += 16_000
        writer.write(stream("", "end").removeprefix(SSE))

    async with backend(pour) as desk, road(tmp_path, desk.base_url) as running:
        one, two = await send(running, stream=True, **SAME), await send(running, stream=True, **SAME)
        two[1].transport.pause_reading()  # type: ignore[attr-defined]
        reading = asyncio.create_task(receive(one))
        await asyncio.sleep(1)
        assert sent < 16_000_000
        two[1].transport.resume_reading()  # type: ignore[attr-defined]
        assert text_of(await receive(two))[-3:] == text_of(await reading)[-3:] == "end"
        assert len(desk.requests) == 1
        await nothing_is_left(running)

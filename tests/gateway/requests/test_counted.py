"""What is charged for paid streams where providers count otherwise, say it in one piece, or callers go away."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.quota import Quota
from tests.gateway.http.edges import DONE, SSE, Edge, Writer, chunk, question, until, whole
from tests.gateway.requests.roads import send
from tests.gateway.requests.talkers import CREDITS, TIME_S, WORD, Talker, ending, paid, spent, spoken, stream

pytestmark = pytest.mark.anyio


def usage(tokens: int) -> bytes:
    said = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": tokens}}
    return chunk(b"data: %b\n\n" % json.dumps(said).encode())


def with_budget(running: Edge, limit_nano: int) -> Any:
    """The counter of a spending limit on the one model: with a limit on all, an admin would need no credits."""
    keys = running.services.keys
    caller = keys.find(running.key)
    assert caller
    limit = Quota(f"key:{caller.key_id}", "spend", limit_nano, "month", model="paid")
    running.services.directory.quotas.set(limit)
    caller = keys.find(running.key)
    assert caller
    (counter,) = running.services.limits.plans.of(caller, "paid").spend
    return counter


@pytest.mark.parametrize(("credit", "charge"), [(CREDITS, 900), (600, 600)])
async def test_a_providers_count_above_the_hold_is_covered_as_far_as_credits_go(
    tmp_path: Path, credit: int, charge: int
) -> None:
    async with paid(tmp_path, Talker(100, counted=900), credit) as (running, _):
        assert (await stream(running)).finishes == {0: "stop"}
        assert await spent(running, credit) == charge


async def test_nobody_is_charged_beyond_the_length_that_the_request_allows(tmp_path: Path) -> None:
    async with paid(tmp_path, Talker(100, counted=10**5), CREDITS) as (running, _):
        counter = with_budget(running, CREDITS)
        assert (await stream(running)).finishes == {0: "stop"}
        assert await spent(running) == 4000  # the model's longest answer
        assert (counter.taken, counter.held) == (4000, 0)


async def test_what_is_whole_in_place_of_a_stream_is_paid_before_it_leaves(tmp_path: Path) -> None:
    message = {"role": "assistant", "content": WORD * 3000}
    used = {"prompt_tokens": 1, "completion_tokens": 3000}
    answer = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": used}

    async def one(_: bytes, writer: Writer) -> None:
        writer.write(whole(json.dumps(answer).encode()))

    async with paid(tmp_path, one, CREDITS) as (running, _):
        assert (await stream(running)).answered.content.count(WORD.encode()) == 3000
        assert await spent(running) == 3000


async def test_of_an_event_that_is_too_dear_the_part_that_is_paid_passes(tmp_path: Path) -> None:
    async def one(_: bytes, writer: Writer) -> None:
        writer.write(SSE + chunk(spoken(0, WORD * 1500, "stop")) + usage(1500) + chunk(DONE) + b"0\r\n\r\n")

    async with paid(tmp_path, one, 1000) as (running, _):
        streamed = await stream(running)
        assert (streamed.ended, streamed.finishes) == ("credits_exhausted", {0: "length"})
        assert 1000 - 16 < streamed.words <= 1000
        assert await spent(running, 1000) == streamed.words


@pytest.mark.parametrize("words", [400, 200])
async def test_who_asked_first_and_leaves_pays_for_what_the_others_get(tmp_path: Path, words: int) -> None:
    """All of it, or as far as they are there themselves."""
    talker = Talker(400, waits_at=20)
    async with paid(tmp_path, talker, CREDITS) as (running, _):
        first = await send(running, model="paid", stream=True, temperature=0)
        await until(lambda: len(running.services.answers._flights) == 1, TIME_S)
        reader, writer = await send(running, model="paid", stream=True, temperature=0)
        taken = await reader.readuntil(WORD.encode())
        first[1].close()
        await until(lambda: running.services.health.of("cloud:acme").speaking == 1, TIME_S)
        talker.goes_on.set()
        async with asyncio.timeout(TIME_S):
            while taken.count(WORD.encode()) < words:
                taken += await reader.read(300)
        writer.close()
        assert taken.count(WORD.encode()) <= await spent(running) <= 400


async def test_what_cannot_stand_behind_an_answer_is_not_announced(tmp_path: Path) -> None:
    async with paid(tmp_path, Talker(2000), 700) as (running, _):
        reader, writer = await running.connect()
        raw = running.request(question(model="paid", stream=True), b"")
        writer.write(raw.replace(b"HTTP/1.1", b"HTTP/1.0"))
        head, _, body = (await asyncio.wait_for(reader.read(), TIME_S)).partition(b"\r\n\r\n")
        writer.close()
        assert b"trailer" not in head.lower()
        assert body.endswith(b"data: [DONE]\n\n")


async def test_more_choices_than_are_followed_are_refused(tmp_path: Path) -> None:
    async with paid(tmp_path, Talker(1), CREDITS) as (running, provider):
        reader, writer = await running.connect()
        body = {"model": "paid", "stream": True, "prompt": ["Hi"] * 1025}
        writer.write(running.request(json.dumps(body).encode(), b"connection: close\r\n", b"/v1/completions"))
        refused = (await ending((reader, writer))).answered
        assert (refused.status, refused.error["param"], provider.requests) == (400, "prompt", [])


async def test_who_hangs_up_behind_the_last_word_pays_what_is_counted_then(tmp_path: Path) -> None:
    has_left = asyncio.Event()

    async def thinks(_: bytes, writer: Writer) -> None:
        writer.write(SSE + chunk(spoken(0, WORD, "stop")))
        await writer.drain()
        await has_left.wait()
        writer.write(usage(3000) + chunk(DONE) + b"0\r\n\r\n")

    async with paid(tmp_path, thinks, CREDITS) as (running, _):
        reader, writer = await send(running, model="paid", stream=True, reasoning_effort="high")
        await reader.readuntil(b'"stop"')
        writer.close()
        await asyncio.sleep(0.1)
        has_left.set()
        assert await spent(running) == 3000


async def test_a_prompt_that_is_said_again_is_not_paid_twice(tmp_path: Path) -> None:
    prompt = "the race " * 100

    async def echoes(_: bytes, writer: Writer) -> None:
        writer.write(SSE)
        for text in (prompt, WORD, WORD):
            choice = {"index": 0, "text": text, "finish_reason": None}
            writer.write(chunk(b"data: %b\n\n" % json.dumps({"choices": [choice]}).encode()))
        await writer.drain()
        writer.close()

    async with paid(tmp_path, echoes, CREDITS) as (running, _):
        body = {"model": "paid", "stream": True, "prompt": prompt, "echo": True, "max_tokens": 2000}
        reader, writer = await running.connect()
        writer.write(running.request(json.dumps(body).encode(), b"connection: close\r\n", b"/v1/completions"))
        await ending((reader, writer))
        assert await spent(running) == 2


async def test_no_budget_is_reserved_for_what_the_ledger_refuses(tmp_path: Path) -> None:
    talker = Talker(600, waits_at=520)
    async with paid(tmp_path, talker, 600) as (running, _):
        counter = with_budget(running, CREDITS)
        connection = await send(running, model="paid", stream=True)
        await until(lambda: counter.held > 512, TIME_S)
        ledger = running.services.ledger
        async with asyncio.timeout(TIME_S):
            while counter.held != 600 or (await ledger.balance("owner")).held_nano != 600:
                await asyncio.sleep(0.02)
        talker.goes_on.set()
        await ending(connection)


async def test_what_was_shared_is_not_cut_for_others_money(tmp_path: Path) -> None:
    """Who asked the same meanwhile is told to ask again: the text so far would look like a whole answer."""
    talker = Talker(600, waits_at=20)
    async with paid(tmp_path, talker, 300) as (running, _):
        first = await send(running, model="paid", stream=True, temperature=0)
        await until(lambda: len(running.services.answers._flights) == 1, TIME_S)
        second = await send(running, model="paid", stream=True, temperature=0)
        await until(lambda: running.services.admission.in_flight == 2, TIME_S)
        talker.goes_on.set()
        leaders, followers = await ending(first), await ending(second)
        assert leaders.ended == "credits_exhausted"
        assert followers.answered.error["code"] == "upstream_broke_off"


@pytest.mark.parametrize("is_whole", [False, True], ids=["left", "whole"])
async def test_calls_that_are_told_at_the_end_are_paid_when_they_were_told(
    tmp_path: Path, *, is_whole: bool
) -> None:
    """Ollama's callers get calls of tools whole: who leaves before has none of them."""
    arguments = json.dumps({"where": WORD * 100})
    function = {"index": 0, "id": "c1", "function": {"name": "find", "arguments": arguments}}
    calling = {"choices": [{"index": 0, "delta": {"tool_calls": [function]}, "finish_reason": "tool_calls"}]}
    goes_on = asyncio.Event()

    async def calls(_: bytes, writer: Writer) -> None:
        writer.write(
            SSE + chunk(spoken()) + chunk(b"data: %b\n\n" % json.dumps(calling).encode()) + chunk(spoken())
        )
        await writer.drain()
        await goes_on.wait()
        writer.write(usage(130) + chunk(DONE) + b"0\r\n\r\n")

    async with paid(tmp_path, calls, CREDITS) as (running, _):
        reader, writer = await running.connect()
        body = {"model": "paid", "messages": [{"role": "user", "content": "Hi"}], "options": {"num_predict": 2000}}
        writer.write(running.request(json.dumps(body).encode(), b"connection: close\r\n", b"/api/chat"))
        await reader.readuntil(WORD.encode())
        await reader.readuntil(WORD.encode())
        if is_whole:
            goes_on.set()
            assert WORD * 100 in (await asyncio.wait_for(reader.read(), 60)).decode()
        writer.close()
        assert await spent(running) == (130 if is_whole else 2)

"""What is found is the asker's own: kept answers cost nothing, and cross neither tenants nor privacy classes."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from gateway.cache.answers import AnswerCache, Found
from gateway.cache.remote import RemoteAnswerStore
from gateway.dialects.openai import read_request
from gateway.dialects.routes import ROUTES
from gateway.identity.caller import Caller
from gateway.lanes.base import Answer, Call, Meter, Out
from gateway.lanes.body import BytesBody
from gateway.quota import Measure, Quota
from gateway.requests.batch_jobs.dispatch import send_request as ask_as_batch
from gateway.settings.base import Privacy
from gateway.settings.cache import CacheSettings
from tests.gateway.http.edges import Writer, backend, until, whole
from tests.gateway.requests.roads import ANSWER, nothing_is_left, receive, road, send
from tests.redis_server import RedisServer

ANN = Caller("key-1", "mr-1", "ann", "lab", frozenset({"pool"}))
KEEP_ALL = CacheSettings(answers="all", semantic_model="e", similarity_min=0.9)

callers = st.builds(
    lambda user, organization, lanes, models: replace(
        ANN, user_id=user, organization_id=organization, lanes=lanes, models=models
    ),
    st.sampled_from(("ann", "bob")),
    st.sampled_from(("home", "lab")),
    st.sampled_from((frozenset({"pool"}), frozenset({"pool", "cloud"}))),
    st.sampled_from((None, frozenset(), frozenset({"m"}))),
)
labels: st.SearchStrategy[Privacy] = st.sampled_from(("public", "internal", "private"))
# The middle two mean the same to the embedder below.
questions = st.sampled_from(("What turns?", "What turns all night?", "What turns all day?", "Who?"))


def call(text: str, **fields: Any) -> Call:
    raw = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": text}]} | fields)
    return Call("id", "chat", read_request("chat", raw), raw)


async def embed(caller: Caller, privacy: Privacy, text: str) -> list[float] | None:
    return {"W": [1.0, 0.0], "all ": [0.0, 1.0]}["all " if "all " in text else "W"]


class RecordingSink(Out):
    def __init__(self) -> None:
        self.content = b""

    def write(self, data: bytes) -> None:
        self.content += data

    @property
    def is_full(self) -> bool:
        return False

    async def drain(self) -> None: ...


async def ask(
    answers: AnswerCache, caller: Caller, privacy: Privacy, asked: Call, answer: bytes
) -> tuple[str, bytes]:
    """Where the answer came from, and the answer; `answer` is what a lane would say."""
    found = await answers.find(asked, caller, privacy)
    heard = RecordingSink()
    if isinstance(found, Found):
        await found.answer.body.send(heard)
        return found.source, heard.content
    meter = Meter(source="upstream", is_complete=True)
    shown = found.show(Answer(200, "application/json", BytesBody(answer), meter))
    await shown.body.send(heard)
    await shown.body.close()
    await found.end()
    return "", heard.content


@given(st.lists(st.tuples(callers, labels, questions, st.sampled_from((0, 1))), min_size=2, max_size=12))
def test_nobody_is_ever_given_what_another_scope_was_answered(
    steps: list[tuple[Caller, Privacy, str, int]],
) -> None:
    async def run() -> None:
        answers = AnswerCache(KEEP_ALL, embed=embed)
        for caller, privacy, text, temperature in steps:
            scope = repr((caller, privacy)).encode()
            _, said = await ask(answers, caller, privacy, call(text, temperature=temperature), scope)
            assert said == scope

    asyncio.run(run())


@pytest.mark.anyio
async def test_a_question_of_the_same_meaning_is_marked_as_similar() -> None:
    answers = AnswerCache(KEEP_ALL, embed=embed)
    assert await ask(answers, ANN, "public", call("What turns all night?"), b"wheel") == ("", b"wheel")
    assert await ask(answers, ANN, "public", call("What turns all night?"), b"x") == ("hit", b"wheel")
    assert await ask(answers, ANN, "public", call("What turns all day?"), b"x") == ("similar", b"wheel")
    # What surrounds the question must be the same to the letter.
    assert await ask(answers, ANN, "public", call("What turns all day?", max_tokens=9), b"x") == ("", b"x")
    assert await ask(answers, ANN, "public", call("Who?"), b"miller") == ("", b"miller")
    # Tools are no plain question.
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert await ask(answers, ANN, "public", call("What turns all week?", tools=tools), b"y") == ("", b"y")


@pytest.mark.anyio
async def test_an_answer_under_an_alias_is_gone_when_it_stands_for_other_models() -> None:
    aliases = {"m": ("small",)}
    answers = AnswerCache(CacheSettings(answers="all"), aliases=lambda: aliases)
    assert await ask(answers, ANN, "public", call("Who?"), b"small") == ("", b"small")
    assert await ask(answers, ANN, "public", call("Who?"), b"x") == ("hit", b"small")
    aliases["m"] = ("large",)
    assert await ask(answers, ANN, "public", call("Who?"), b"large") == ("", b"large")


@pytest.mark.anyio
async def test_a_broken_answer_is_not_kept() -> None:
    answers = AnswerCache(CacheSettings(answers="all"))
    for status, is_complete in ((200, False), (400, True)):
        found = await answers.find(call("Who?"), ANN, "public")
        assert not isinstance(found, Found)
        shown = found.show(Answer(status, "application/json", BytesBody(b"half"), Meter(is_complete=is_complete)))
        await shown.body.send(RecordingSink())
        await found.end()
    assert not isinstance(await answers.find(call("Who?"), ANN, "public"), Found)


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    server = RedisServer()
    server.start()
    yield server
    server.close()


@pytest.mark.anyio
async def test_gateways_share_what_is_kept_and_live_without_redis(redis_server: RedisServer) -> None:
    settings = CacheSettings(answers="all")
    async with Redis.from_url(redis_server.url) as one, Redis.from_url(redis_server.url) as two:
        first, second, third = (
            AnswerCache(settings, RemoteAnswerStore(client, "t", 60)) for client in (one, two, two)
        )
        assert (await ask(first, ANN, "public", call("Who?"), b"miller"))[0] == ""
        assert await ask(second, ANN, "public", call("Who?"), b"x") == ("hit", b"miller")
        assert (await ask(second, replace(ANN, user_id="bob"), "public", call("Who?"), b"y"))[0] == ""
        assert (await ask(first, ANN, "private", call("Secret?"), b"corn"))[0] == ""
        assert await ask(first, ANN, "private", call("Secret?"), b"x") == ("hit", b"corn")
        assert (await ask(second, ANN, "private", call("Secret?"), b"y")) == ("", b"y")
        assert len(await one.keys("t:answer:*")) == 2  # nothing that is private
        redis_server.pause()
        assert (await asyncio.wait_for(ask(third, ANN, "public", call("Who?"), b"z"), 30))[1] == b"z"
        redis_server.kill()
        assert (await asyncio.wait_for(ask(third, ANN, "public", call("What?"), b"w"), 30))[1] == b"w"


@pytest.mark.anyio
async def test_a_hit_costs_nothing_and_is_said_to_be_one(tmp_path: Path) -> None:
    async def answer(body: bytes, writer: Writer) -> None:
        if b"messages" not in body:
            vector = [1.0, 0.0] if "night" in str(json.loads(body)["input"]) else [0.999, 0.01]
            writer.write(whole(json.dumps({"data": [{"embedding": vector}]}).encode()))
        else:
            writer.write(whole(ANSWER))

    models = {"models": ("m", "e")}
    async with backend(answer) as desk, road(tmp_path, desk.base_url, backend=models, cache=KEEP_ALL) as running:
        day: dict[str, Any] = {"messages": [{"role": "user", "content": "What turns all day?"}]}
        night: dict[str, Any] = {"messages": [{"role": "user", "content": "What turns all night?"}]}
        asked = [await receive(await send(running, **fields)) for fields in (day, day, night)]
        assert [one.headers.get("x-millrace-cache") for one in asked] == [None, "hit", "similar"]
        assert [one.headers["x-millrace-lane"] for one in asked] == ["pool", "cache", "cache"]
        assert {one.content for one in asked} == {ANSWER}
        refused = await receive(await send(running, **day, millrace={"cache": False}))
        private = await receive(await send(running, **day, millrace={"privacy": "private"}))
        assert [one.headers["x-millrace-lane"] for one in (refused, private)] == ["pool", "pool"]
        await nothing_is_left(running)
        log = running.services.request_log
        await until(lambda: log.find(asked[1].headers["x-request-id"]) is not None, 60)
        hit = log.find(asked[1].headers["x-request-id"])
        assert hit
        assert (hit.lane, hit.backend, hit.outcome, hit.charge_nano) == ("cache", "cache", "complete", 0)


@pytest.mark.anyio
async def test_a_hit_counts_as_a_request_and_as_no_tokens(tmp_path: Path) -> None:
    async def answer(body: bytes, writer: Writer) -> None:
        writer.write(whole(ANSWER))

    route = next(route for route in ROUTES if route.path == "/v1/chat/completions")
    question = route.read(json.dumps({"model": "m", "messages": [{"role": "user", "content": "Who?"}]}).encode())
    measures: tuple[Measure, ...] = ("requests", "tokens")
    quotas = tuple(Quota("key:key-1", measure, 10_000, "minute") for measure in measures)
    keep = CacheSettings(answers="all")
    async with backend(answer) as desk, road(tmp_path, desk.base_url, cache=keep) as running:
        services, asker = running.services, replace(ANN, user_id="owner", quotas=quotas)
        first = await ask_as_batch(services.requests.ordinary, asker, route, question, "req_1")
        second = await ask_as_batch(services.requests.ordinary, asker, route, question, "req_2")
        assert first.body == second.body == ANSWER
        ticket = await services.limits.enter(asker, "m", 0)
        left = dict(ticket.headers())
        assert int(left[b"x-ratelimit-remaining-requests"]) == 10_000 - 3
        used = 10_000 - int(left[b"x-ratelimit-remaining-tokens"])
        assert 0 < used < 20  # of one answer
        ticket.leave(0, 0, is_served=False)

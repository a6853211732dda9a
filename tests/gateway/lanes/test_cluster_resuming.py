"""Answers that are cut anywhere and resumed at a replica: what a caller has is the unbroken answer."""

import functools
import json
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from cluster.errors import RequestInvalid
from cluster.generation import TokenEvent
from cluster.models.chat_format import ChatFormat
from gateway.dialects.openai import HAD_TOKENS_MAX, Extras, Had, Kind, read_request
from gateway.lanes.base import Call
from gateway.lanes.cluster.answers import AnswerWriter
from gateway.lanes.cluster.lane import ClusterLane
from gateway.lanes.cluster.requests import tools_of
from gateway.lanes.usage import Meter
from gateway.requests.resumable_stream import ResumableStream
from runtime.errors import RequestInvalid as BadRequest
from tests.cluster.test_tool_calls import SAID, THINK
from tests.clusters import running_cluster
from tests.gateway.lanes.test_cluster import CITY, NOON, WEATHER
from tests.streams import said

pytestmark = pytest.mark.anyio

CUTS = 5
ASKED = [{"role": "user", "content": "Tell me of the wheel."}]
CITY_FORMAT = {"type": "json_schema", "json_schema": {"name": "place", "schema": CITY, "strict": True}}
USAGE = {"stream_options": {"include_usage": True}}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def lane(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClusterLane]:
    async with running_cluster(tmp_path_factory.mktemp("cluster"), nodes=1) as cluster:
        yield ClusterLane(cluster.controller, 8)


class Out:
    def __init__(self) -> None:
        self.content = b""

    def write(self, data: bytes) -> None:
        self.content += data

    is_full = False

    async def drain(self) -> None:
        pass


def call_of(kind: Kind, fields: dict[str, Any], **extras: Any) -> Call:
    body = {"model": "demo", "stream": True, "max_tokens": 24, "millrace": {"resumable": True} | extras} | fields
    raw = json.dumps(body).encode()
    return Call("test", kind, read_request(kind, raw), raw)


def resumed(call: Call, had: list[Had]) -> Call:
    extras = structs.replace(call.request.millrace or Extras(), resume=had)
    return structs.replace(call, request=structs.replace(call.request, millrace=extras))


async def events_of(lane: ClusterLane, call: Call) -> list[bytes]:
    out = Out()
    (offer,) = lane.offers(lane.models()[0])
    answer = await lane.open(call, offer)
    await answer.body.send(out)
    return [event + b"\n\n" for event in out.content.split(b"\n\n") if event]


SCENARIOS: dict[str, tuple[Kind, dict[str, Any]]] = {
    "greedy": ("chat", {"messages": ASKED, "temperature": 0} | USAGE),
    "with chance, several": ("chat", {"messages": ASKED, "temperature": 1.3, "seed": 7, "n": 3} | USAGE),
    "logprobs": ("chat", {"messages": ASKED, "temperature": 1.0, "seed": 1, "logprobs": True, "top_logprobs": 2}),
    "penalties": ("chat", {"messages": ASKED, "temperature": 0.8, "seed": 2, "frequency_penalty": 1.5}),
    "schema": ("chat", {"messages": ASKED, "temperature": 1.0, "seed": 3, "response_format": CITY_FORMAT}),
    "completion": (
        "completion",
        {"prompt": "Once upon a time", "temperature": 0.9, "seed": 5, "echo": True, "stop": ["e ", " th"]} | USAGE,
    ),
    "completion with logprobs": ("completion", {"prompt": "The river", "temperature": 0, "logprobs": 1}),
    "token prompt": ("completion", {"prompt": [5, 6, 7], "temperature": 0}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_replica_goes_on_where_the_first_was_cut(lane: ClusterLane, name: str) -> None:
    kind, fields = SCENARIOS[name]
    call = call_of(kind, fields)
    events = await events_of(lane, call)
    out = Out()
    unbroken = ResumableStream(out, call.generation.n or 1)
    unbroken.write(b"".join(events))
    expected = said(out.content)
    chance = Random(name)
    for cut in {0, 1, len(events) - 1, *chance.sample(range(len(events)), min(CUTS, len(events)))}:
        out = Out()
        stream = ResumableStream(out, call.generation.n or 1)
        stream.write(b"".join(events[:cut]))
        assert stream.can_go_on
        stream.join()
        stream.write(b"".join(await events_of(lane, resumed(call, stream.had))))
        heard = said(out.content)
        assert _exact(heard) == _exact(expected), cut
        assert _numbers(heard[0]) == pytest.approx(_numbers(expected[0]), abs=1e-3), cut


def _exact(heard: Any) -> Any:
    """Without how much of the prompt was known, which depends on who was asked before, and without numbers: their
    last bits rest on an order of adding, which for many tokens at once is another one than for each by itself.
    """
    choices, usages = heard
    return _without_numbers(choices), [usage | {"prompt_tokens_details": None} for usage in usages]


def _without_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_numbers(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_numbers(inner) for inner in value]
    return None if isinstance(value, float) else value


def _numbers(value: Any) -> list[float]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value] if isinstance(value, float) else [number for one in inner for number in _numbers(one)]


def test_nothing_is_told_twice_of_an_answer_that_is_over() -> None:
    """All but the last event came: what the replica says of the end is the end."""
    out = Out()
    stream = ResumableStream(out, 1)
    record = (
        b'data: {"choices":[],"millrace":{"choice":0,"token_ids":[5],"characters":1,"chunks":1,"finished":true}}'
    )
    chunk = b'data: {"id":"%s","choices":[{"index":0,"text":"a","finish_reason":"stop"}]}'
    usage = b'data: {"id":"%s","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}'
    stream.write(b"\n\n".join([record, chunk % b"x", usage % b"x", b""]))
    assert stream.had == [Had(token_ids=[5], characters=1)]
    stream.join()
    stream.write(b"\n\n".join([record.replace(b"[5]", b"[]"), chunk % b"y", usage % b"y", b"data: [DONE]", b""]))
    assert out.content.count(b'"finish_reason":"stop"') == out.content.count(b'"usage"') == 1
    assert b'"y"' not in out.content


@given(sample=st.sampled_from(SAID), step=st.integers(1, 5), cut=st.integers(0, 60))
def test_thoughts_and_calls_go_on_in_the_middle(
    sample: tuple[Any, str, str, str, list[tuple[str, str]]], step: int, cut: int
) -> None:
    """The parser of the rest has also read the beginning: at once, where the first one heard it in pieces."""
    tools, text = sample[0], sample[1]
    form = ChatFormat(tools, THINK if tools == "hermes" else None)
    pieces = [text[at : at + step] for at in range(0, len(text), step)]
    unbroken, broken = Out(), Out()
    ResumableStream(unbroken, 1).write(b"".join(_spoken(form, pieces)))
    stream = ResumableStream(broken, 1)
    stream.write(b"".join(_spoken(form, pieces)[:cut]))
    if stream.can_go_on:
        stream.join()
        (had,) = stream.had
        heard = len(had.token_ids)
        stream.write(b"".join(_spoken(form, pieces[heard:], had, "".join(pieces[:heard]))))
    assert said(broken.content) == said(unbroken.content)


def _spoken(form: ChatFormat, pieces: list[str], had: Had | None = None, before: str = "") -> list[bytes]:
    call = call_of("chat", {"messages": ASKED, "tools": [WEATHER, NOON]})
    known = (had,) if had else ()
    writer = AnswerWriter(call, "demo", [""], form, tools_of(call), had=known, tells_tokens=True)
    writer.accept(is_thinking=False)
    events = [TokenEvent(0, before, 0, 0)] if before else []
    events += [TokenEvent(0, piece, 0, 0, token_ids=(1,)) for piece in pieces]
    written = b"".join(writer.token(0, event) for event in [*events, TokenEvent(0, "", 0, 0, finish="stop")])
    return [event + b"\n\n" for event in (written + writer.end(Meter())).split(b"\n\n") if event]


HAD: dict[str, Any] = {"token_ids": [5], "characters": 1}


@pytest.mark.parametrize(
    ("fields", "extras", "param"),
    [
        ({}, {"resume": [HAD, HAD]}, "millrace.resume"),
        ({"stream": False}, {"resume": [HAD]}, "millrace.resume"),
        ({}, {"resume": [{"token_ids": [2**31 - 1], "characters": 1}]}, "millrace.resume"),
        ({}, {"resume": [HAD], "weights": "others"}, "millrace.weights"),
        ({}, {"resume": [HAD | {"token_ids": [5] * 5000}]}, "millrace.resume"),
    ],
)
async def test_what_cannot_be_gone_on_with_is_refused_by_name(
    lane: ClusterLane, fields: dict[str, Any], extras: dict[str, Any], param: str
) -> None:
    with pytest.raises(RequestInvalid) as caught:
        await events_of(lane, call_of("chat", {"messages": ASKED} | fields, **extras))
    assert caught.value.param == param


async def test_tokens_that_no_schema_allows_end_that_answer_alone(lane: ClusterLane) -> None:
    """As a client might send them that has not got them from a gateway."""
    call = call_of("chat", SCENARIOS["schema"][1], resume=[{"token_ids": [9, 9, 9], "characters": 0}])
    with pytest.raises(RequestInvalid):
        await events_of(lane, call)
    assert await events_of(lane, call_of("chat", {"messages": ASKED}))


async def test_an_answer_that_fills_the_context_is_over(lane: ClusterLane) -> None:
    (offer,) = lane.offers(lane.models()[0])
    assert offer.context_tokens
    had = {"token_ids": [5] * offer.context_tokens, "characters": 0}
    events = await events_of(lane, call_of("chat", {"messages": ASKED, "max_tokens": None}, resume=[had]))
    assert b'"finish_reason":"length"' in events[-2]


@pytest.mark.parametrize("tokens", [HAD_TOKENS_MAX // 2 + 1, 1_000_000])
def test_more_tokens_than_anybody_has_to_resume_are_refused_as_they_are_read(tokens: int) -> None:
    had = {"token_ids": [99] * tokens, "characters": 0}
    body = json.dumps(
        {"model": "demo", "messages": ASKED, "stream": True, "n": 2, "millrace": {"resume": [had] * 2}}
    )
    with pytest.raises(BadRequest, match=str(HAD_TOKENS_MAX)) as caught:
        read_request("chat", body.encode())
    assert (caught.value.param or "").startswith("millrace")


async def test_of_other_weights_nothing_is_told(lane: ClusterLane) -> None:
    (offer,) = lane.offers(lane.models()[0])
    told = functools.partial(call_of, "chat", {"messages": ASKED, "temperature": 0, "max_tokens": 4})
    assert any(b"millrace" in event for event in await events_of(lane, told(weights=offer.weights)))
    assert not any(b"millrace" in event for event in await events_of(lane, told(weights="others")))

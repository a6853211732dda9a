"""Whatever a backend answers, it is its own standing that it costs, and the next probe is made."""

import asyncio
import json

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from gateway.lanes.pool.gauges import read_gauges
from gateway.lanes.pool.kinds.base import read_list
from gateway.lanes.pool.queries import Reply
from gateway.lanes.pool.report import MODELS_MAX, Listing, ModelReport, ProbeFailed, is_safe_name
from tests.fakes import pool_servers as servers
from tests.gateway.lanes.pool.conftest import Opens, one, until

pytestmark = pytest.mark.anyio

GARBAGE: dict[str, object] = {
    "not JSON": b"<html>502 Bad Gateway</html>",
    "not UTF-8": b'{"data": [{"id": "\xff\xfe"}]}',
    "deep": b"[" * 100_000,
    "a number": 12.5,
    "no list": {"data": "llama"},
    "no names": {"data": [{"name": "llama"}]},
    "no objects": {"data": [None, 1, "x"]},
    "too long": {"data": [{"id": f"model-{number}", "object": "model" * 10} for number in range(100_000)]},
    "redirect": web.HTTPFound("http://169.254.169.254/latest"),
    "error": 500,
}


@pytest.mark.parametrize("what", GARBAGE)
@pytest.mark.parametrize("kind", ["auto", "ollama", "vllm", "lm-studio", "llama-server", "tabby"])
async def test_garbage_marks_a_backend_down_with_a_reason(what: str, kind: str, opened: Opens) -> None:
    answer = GARBAGE[what]
    value = (lambda _: web.HTTPFound("http://169.254.169.254/latest")) if what == "redirect" else answer
    paths = ("/v1/models", "/api/tags", "/api/v0/models", "/api/v1/models", "/v1/model")
    server = servers.FakeServer(dict.fromkeys(paths, value))
    async with servers.running(server), opened(one(server.base_url, kind=kind)) as lane:
        await until(lambda: lane.pool.find("desk").standing.state != "starting")
        standing = lane.pool.find("desk").standing
        assert standing.state == "down"
        assert standing.note
        assert lane.models() == []


async def test_a_long_list_is_cut_and_said_to_be(opened: Opens) -> None:
    names = [f"m{number}" for number in range(MODELS_MAX + 500)]
    server = servers.FakeServer({"/v1/models": servers.listed(*names, owner="gpustack")})
    async with servers.running(server), opened(one(server.base_url)) as lane:
        assert len(lane.models()) == MODELS_MAX
        assert "left out" in lane.pool.find("desk").warnings[0]


async def test_names_that_nobody_may_use_are_refused(opened: Opens) -> None:
    bad = ["../../etc/passwd", "a/../b", "a\nb", "a\x1b[31m", "a\u202eb", "x" * 300, ""]
    server = servers.FakeServer({"/v1/models": servers.listed("good/one", *bad, owner="vllm")})
    async with servers.running(server), opened(one(server.base_url)) as lane:
        assert lane.models() == ["good/one"]
        assert f"{len(bad)} model names" in lane.pool.find("desk").warnings[0]


async def test_a_field_of_another_type_costs_the_field_alone(opened: Opens) -> None:
    server = servers.FakeServer({"/v1/models": servers.listed("m", owner="vllm", max_model_len="many")})
    async with servers.running(server), opened(one(server.base_url, kind="vllm")) as lane:
        assert lane.offers("m")[0].context_tokens is None


async def test_a_silent_backend_does_not_keep_the_others_waiting(opened: Opens) -> None:
    silent, well = servers.vllm(), servers.sglang()
    silent.hangs = True
    async with servers.running(silent), servers.running(well):
        settings = one(silent.base_url)
        other = one(well.base_url).backends[0].model_copy(update={"name": "rack"})
        both = settings.model_copy(update={"backends": (*settings.backends, other)})
        async with opened(both) as lane:
            assert lane.models() == ["m"]
            await until(lambda: lane.pool.find("desk").standing.state == "down")


async def test_an_endless_list_ends(opened: Opens) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" " * 2**16)

    server = servers.vllm()
    server.answer = endless  # type: ignore[method-assign]
    async with servers.running(server), opened(one(server.base_url, kind="vllm")) as lane:
        await until(lambda: lane.pool.find("desk").standing.state == "down")
        assert "too long" in lane.pool.find("desk").standing.note


@given(st.binary(max_size=400))
def test_no_metrics_text_is_too_odd(text: bytes) -> None:
    sums = read_gauges(b'a{x="1"} 2 99\n' + text + b"\na 3 ", ("a",))
    assert sums.get("a", 0.0) >= 0


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps).map(str.encode)
)
def test_any_bytes_are_a_list_or_a_reason(body: bytes) -> None:
    try:
        read_list(Reply(200, body))
    except ProbeFailed as failure:
        assert failure.note


@given(st.lists(st.text(max_size=8)))
def test_what_is_listed_is_safe_and_listed_once(names: list[str]) -> None:
    listing = Listing()
    for name in names:
        listing.take(ModelReport(name))
    assert set(listing.models) == {name for name in names if is_safe_name(name)}
    assert not any(".." in name.split("/") for name in listing.models)


async def test_a_probe_that_breaks_is_not_the_last(opened: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    server = servers.vllm()
    async with servers.running(server), opened(one(server.base_url)) as lane:
        reader = type(lane.pool._members["desk"].prober._reader)

        async def breaks(*_: object) -> None:
            raise RuntimeError("a defect")

        with monkeypatch.context() as patch:
            patch.setattr(reader, "read", breaks)
            await until(lambda: lane.pool.find("desk").standing.state == "down")
        await until(lambda: lane.pool.find("desk").standing.state == "ready")
        await asyncio.sleep(0)

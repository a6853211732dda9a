"""When a backend is down, busy, starting or drained, and how soon anybody notices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.lanes.pool.loads import LoadTimes
from gateway.lanes.pool.offers import Standing
from gateway.lanes.pool.probe import judge, pause_after
from gateway.lanes.pool.report import ModelReport, ProbeFailed
from tests.fakes import pool_servers as servers
from tests.gateway.lanes.pool.conftest import Opens, one, until

pytestmark = pytest.mark.anyio

READY = Standing("ready")
SILENCE = ProbeFailed("timeout", "does not answer")


async def test_gone_and_back(opened: Opens) -> None:
    server = servers.vllm()
    async with servers.running(server):
        settings = one(server.base_url)
        async with opened(settings) as lane:
            backend = lane.pool.find("desk")
            assert backend.standing == READY
    async with opened(settings) as lane:
        backend = lane.pool.find("desk")
        assert backend.standing.state == "down"
        assert "is it running there?" in backend.standing.note
        async with servers.running(server):
            await until(lambda: backend.standing.state == "ready")
            assert lane.offers("Qwen/Qwen3-8B")[0].state == "ready"
        await until(lambda: backend.standing.state == "down")
        # Callers are told that it is away, not that there is no such model.
        assert lane.offers("Qwen/Qwen3-8B")[0].state == "down"


async def test_another_server_at_the_same_address_is_recognized_again(opened: Opens) -> None:
    first, second = servers.vllm(), servers.ollama()
    async with servers.running(first):
        settings = one(first.base_url)
        second.port = first.port
    async with opened(settings) as lane, servers.running(second):
        await until(lambda: lane.pool.find("desk").kind == "ollama")


async def test_a_failed_request_has_its_backend_asked_at_once(opened: Opens) -> None:
    server = servers.vllm()
    async with servers.running(server), opened(one(server.base_url, probe_s=3600.0)) as lane:
        before = server.asked["/v1/models"]
        lane.pool.doubt("desk")
        await until(lambda: server.asked["/v1/models"] > before)


async def test_a_cold_start_that_was_seen_is_what_the_next_is_expected_to_take(opened: Opens) -> None:
    server = servers.ollama()
    async with servers.running(server), opened(one(server.base_url, probe_s=60.0)) as lane:
        cold = lane.offers("qwen3:8b")[0]
        lane.pool.loaded(cold, 31.0)
        assert lane.offers("qwen3:8b")[0].load_s == pytest.approx(31.0)
        server.answers["/api/ps"] = {"models": [{"name": "qwen3:8b", "context_length": 4096}]}
        await until(lambda: lane.offers("qwen3:8b")[0].is_resident)


async def test_a_server_on_one_thread_may_be_silent_while_it_works(opened: Opens) -> None:
    server = servers.distributed_llama()
    async with servers.running(server), opened(one(server.base_url, probe_timeout_s=0.2)) as lane:
        backend = lane.pool.find("desk")
        server.hangs = True
        await until(lambda: "busy" in backend.standing.note)
        assert backend.standing.state == "ready"
        server.hangs = False
        await until(lambda: not backend.standing.note)


async def test_drained_is_offered_as_such_until_it_is_not(opened: Opens) -> None:
    server = servers.vllm()
    async with servers.running(server), opened(one(server.base_url)) as lane:
        await lane.pool.drain("desk", draining=True)
        offer = lane.offers("Qwen/Qwen3-8B")[0]
        assert (offer.state, "undrain" in offer.note) == ("draining", True)
        await lane.pool.drain("desk", draining=False)
        assert lane.offers("Qwen/Qwen3-8B")[0].state == "ready"


async def test_models_that_the_owner_names_need_no_list(opened: Opens) -> None:
    server = servers.FakeServer({})
    async with servers.running(server), opened(one(server.base_url, models=("a",))) as lane:
        assert lane.offers("a")[0].state == "ready"
        assert "404" in lane.pool.find("desk").warnings[0]


def test_one_silence_is_no_proof_and_two_are() -> None:
    assert judge(SILENCE, 1, READY, 3.0, 0.0) == READY
    assert judge(SILENCE, 2, READY, 3.0, 0.0).state == "down"
    assert judge(SILENCE, 1, Standing("starting"), None, 0.0).state == "down"
    assert judge(SILENCE, 1, READY, 200.0, 120.0).state == "ready"
    assert judge(SILENCE, 2, READY, 200.0, 120.0).state == "down"
    assert judge(ProbeFailed("unreachable", "refused"), 1, READY, 0.1, 120.0).state == "down"
    assert judge(ProbeFailed("loading", "loads"), 9, READY, 0.1, 0.0).state == "starting"


@given(st.integers(0, 1000), st.floats(0.05, 3600), st.booleans())
def test_pauses_are_bounded(misses: int, probe_s: float, is_busy: bool) -> None:
    pause_s = pause_after(misses, probe_s, is_busy=is_busy)
    assert min(probe_s, 0.5) <= pause_s <= probe_s


def test_a_load_that_was_seen_counts_more_than_a_size() -> None:
    loads = LoadTimes()
    model = ModelReport("m", is_resident=False, load_bytes=4_000_000_000)
    assert loads.expected_s(model) == pytest.approx(6.0)
    loads.saw("m", 20.0)
    assert loads.expected_s(model) == pytest.approx(20.0)
    loads.saw("m", 10.0)
    assert loads.expected_s(model) == pytest.approx(15.0)
    assert loads.expected_s(ModelReport("m")) == 0.0

"""Every kind of backend is recognized by itself, and what it publishes arrives in the offers."""

import pytest

from gateway.lanes.base import Offer
from tests.fakes import pool_servers as servers
from tests.gateway.lanes.pool.conftest import Opens, one, until

pytestmark = pytest.mark.anyio


async def offers_of(server: servers.FakeServer, opened: Opens, **given: object) -> dict[str, Offer]:
    async with servers.running(server), opened(one(server.base_url, **given)) as lane:
        return {name: lane.offers(name)[0] for name in lane.models()}


@pytest.mark.parametrize("kind", servers.EVERY)
async def test_a_server_is_recognized_by_what_it_says_of_itself(kind: str, opened: Opens) -> None:
    server = servers.EVERY[kind]()
    async with servers.running(server), opened(one(server.base_url)) as lane:
        backend = lane.pool.find("desk")
        assert (backend.kind, backend.standing.state) == (kind, "ready"), backend.standing
        assert lane.models()


async def test_a_millrace_whose_models_are_still_to_come_is_none_of_ollamas(opened: Opens) -> None:
    server = servers.another_millrace()
    server.answers |= {"/v1/models": {"data": []}, "/api/version": {"version": "0.12.6", "server": "millrace"}}
    async with servers.running(server), opened(one(server.base_url)) as lane:
        assert lane.pool.find("desk").kind == "millrace"


async def test_ollama_says_what_is_loaded_how_long_and_what_it_can(opened: Opens) -> None:
    found = await offers_of(servers.ollama(), opened)
    qwen, llava, embedder = found["qwen3:8b"], found["llava"], found["nomic-embed-text:latest"]
    assert (qwen.is_resident, llava.is_resident) == (False, True)
    assert 5 < qwen.load_s < 10
    assert llava.load_s == 0
    # As loaded; as its file sets it; as it was trained.
    assert (llava.context_tokens, qwen.context_tokens, embedder.context_tokens) == (2048, 16384, 2048)
    assert "tools" in qwen.features
    assert "vision" not in qwen.features
    assert "vision" in llava.features
    assert "chat" not in embedder.kinds
    assert qwen.quantization == "Q4_K_M"
    assert llava.served_as == "llava:latest"


async def test_what_ollama_lets_its_cloud_compute_is_not_private(opened: Opens) -> None:
    found = await offers_of(servers.ollama(), opened)
    assert found["qwen3:8b"].clearance == "private"
    assert found["gpt-oss:120b-cloud"].clearance == "public"


@pytest.mark.parametrize(
    ("kind", "can"),
    [("vllm", True), ("llama-server", True), ("lm-studio", False), ("dllama", False), ("ollama", False)],
)
async def test_who_gives_log_probabilities(kind: str, can: bool, opened: Opens) -> None:
    found = await offers_of(servers.EVERY[kind](), opened)
    assert any("logprobs" in offer.features for offer in found.values()) is can


async def test_an_ollama_gives_them_since_it_has_them_and_its_cloud_never(opened: Opens) -> None:
    newer = servers.ollama()
    newer.answers["/api/version"] = {"version": "0.12.11-rc1"}
    found = await offers_of(newer, opened)
    assert "logprobs" in found["qwen3:8b"].features
    assert "logprobs" not in found["gpt-oss:120b-cloud"].features
    assert newer.asked["/api/version"] <= 2  # recognized by it, then asked once


async def test_ollama_is_asked_once_about_each_model(opened: Opens) -> None:
    server = servers.ollama()
    async with servers.running(server), opened(one(server.base_url)):
        await until(lambda: server.asked["/api/tags"] > 2)
        assert server.asked["/api/show"] == 4


async def test_engines_publish_their_queues(opened: Opens) -> None:
    vllm = (await offers_of(servers.vllm(), opened))["Qwen/Qwen3-8B"]
    assert (vllm.running, vllm.queued, vllm.context_tokens) == (5, 7, 40960)
    sglang = (await offers_of(servers.sglang(), opened))["m"]
    assert (sglang.running, sglang.queued, sglang.slots, sglang.context_tokens) == (4, 1, 48, 32768)
    assert "vision" not in sglang.features
    assert "embedding" not in sglang.kinds


async def test_a_llama_router_says_what_is_loaded_and_what_failed(opened: Opens) -> None:
    found = await offers_of(servers.llama_router(), opened)
    assert [found[name].is_resident for name in "abc"] == [True, False, False]
    assert (found["a"].context_tokens, found["a"].quantization) == (8192, "Q8_0")
    assert (found["b"].state, found["c"].state) == ("ready", "down")
    assert "vision" in found["a"].features
    assert "audio" not in found["a"].features
    assert found["a"].kinds == {"chat", "completion"}
    assert found["b"].kinds == {"rerank"}


@pytest.mark.parametrize(
    ("flags", "kinds"),
    [
        ((), {"chat", "completion"}),
        (("--embeddings",), {"embedding"}),
        (("--reranking",), {"rerank"}),
    ],
)
async def test_a_llama_server_does_what_it_was_started_for(
    flags: tuple[str, ...], kinds: set[str], opened: Opens
) -> None:
    server = servers.llama_server(*flags)
    async with servers.running(server), opened(one(server.base_url)) as lane:
        assert lane.offers("m")[0].kinds == kinds
        await until(lambda: server.asked["/props"] > 2)
        assert server.asked["/v1/embeddings"] == 1, "it is asked once"


async def test_an_older_llama_server_without_rerank_embeds_only(opened: Opens) -> None:
    server = servers.llama_server("--embeddings")
    server.answers["/v1/rerank"] = 404
    async with servers.running(server), opened(one(server.base_url)) as lane:
        assert lane.offers("m")[0].kinds == {"embedding"}
        await until(lambda: server.asked["/props"] > 2)
        assert server.asked["/v1/rerank"] == 1, "it is asked once"


async def test_a_proxys_502_tells_nothing_of_the_llama_server_behind_it(opened: Opens) -> None:
    server = servers.llama_server()
    found = {path: server.answers[path] for path in ("/v1/embeddings", "/v1/rerank")}
    server.answers |= dict.fromkeys(found, 502)
    async with servers.running(server), opened(one(server.base_url)) as lane:
        assert lane.offers("m")[0].kinds == {"chat", "completion"}
        server.answers |= found
        await until(lambda: server.asked["/v1/rerank"] > 1)
        asked = server.asked["/props"]
        await until(lambda: server.asked["/props"] > asked + 1)
        assert lane.offers("m")[0].kinds == {"chat", "completion"}
        assert server.asked["/v1/completions"] == 1, "what was told is not asked again"


async def test_a_llama_server_that_sleeps_is_asked_when_it_wakes(opened: Opens) -> None:
    server = servers.llama_server("--embeddings", is_sleeping=True)
    async with servers.running(server), opened(one(server.base_url)) as lane:
        assert "chat" in lane.offers("m")[0].kinds
        assert "/v1/embeddings" not in server.asked
        server.answers["/props"]["is_sleeping"] = False
        await until(lambda: lane.offers("m")[0].kinds == {"embedding"})


async def test_a_llama_server_that_may_sleep_is_not_woken(opened: Opens) -> None:
    props = {"total_slots": 2, "is_sleeping": True, "default_generation_settings": {"n_ctx": 2048}}
    slots = [{"id": 0, "is_processing": True}, {"id": 1, "is_processing": False}]
    models = servers.listed("a", owner="llamacpp")
    server = servers.FakeServer({"/v1/models": models, "/props": props, "/slots": slots}, "llama.cpp")
    found = (await offers_of(server, opened))["a"]
    assert (found.is_resident, found.running, found.slots) == (False, None, 2)
    assert "/slots" not in server.asked
    del props["is_sleeping"]
    older = (await offers_of(server, opened))["a"]
    assert (older.is_resident, older.running) == (True, 1)


async def test_lm_studio_says_types_and_states_in_both_of_its_listings(opened: Opens) -> None:
    found = await offers_of(servers.lm_studio(), opened)
    assert found["openai/gpt-oss-20b"].context_tokens == 8192
    assert "vision" not in found["openai/gpt-oss-20b"].features
    assert not found["qwen2-vl-7b-instruct"].is_resident
    assert "chat" not in found["text-embedding-nomic-embed-text-v1.5"].kinds
    newer = await offers_of(servers.lm_studio_v1(), opened)
    assert (newer["qwen/qwen3.5-9b"].context_tokens, newer["qwen/qwen3.5-9b"].is_resident) == (4096, True)
    assert (newer["nomic"].is_resident, "chat" in newer["nomic"].kinds) == (False, False)


async def test_only_what_can_answer_now_is_offered(opened: Opens) -> None:
    assert list(await offers_of(servers.tabby(), opened)) == ["exl3-model"]
    assert list(await offers_of(servers.exo(), opened)) == ["mlx-community/a"]


async def test_a_tabby_without_a_model_is_starting_and_says_the_remedy(opened: Opens) -> None:
    server = servers.tabby()
    server.answers["/v1/model"] = 503
    async with servers.running(server), opened(one(server.base_url)) as lane:
        standing = lane.pool.find("desk").standing
        assert standing.state == "starting"
        assert "load one" in standing.note


@pytest.mark.parametrize("kind", ["auto", "openai", "gpustack"])
async def test_what_another_gateway_buys_is_not_private(kind: str, opened: Opens) -> None:
    """Whatever it is said to be."""
    found = await offers_of(servers.another_millrace(), opened, kind=kind)
    assert (found["own"].clearance, found["bought"].clearance) == ("private", "public")


async def test_another_gateway_says_what_its_models_can_and_whose_replicas_they_are(opened: Opens) -> None:
    found = await offers_of(servers.another_millrace(), opened)
    own, bought = found["own"], found["bought"]
    assert (own.weights, bought.weights) == ("abc/bf16", "")
    assert not own.is_resident
    assert own.kinds == {"chat"}
    assert own.features >= {"tools", "suffix"}
    assert not own.features & {"json", "vision"}

"""Ollama clients load and unload models: Ollama does it, for callers with permission; other kinds ignore it."""

from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from gateway.dialects.ollama.shapes import GenerateBody
from gateway.identity.audit import Filter
from gateway.quota import Quota
from tests.fakes import pool_servers as servers
from tests.gateway.http.edges import Edge
from tests.gateway.requests.roads import road

pytestmark = pytest.mark.anyio

MODEL = "qwen3:8b"


@pytest.fixture
def told() -> list[Any]:
    """What the Ollama was told."""
    return []


def ollama(told: list[Any]) -> servers.FakeServer:
    server = servers.ollama()

    def generate(body: Any) -> Any:
        told.append(body)
        return {"model": body["model"], "done": True}

    server.answers["/api/generate"] = generate
    return server


async def ask(running: Edge, path: str, key: str | None = None, **fields: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key or running.key}"}
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{running.port}", trust_env=False, timeout=60
    ) as client:
        return await client.post(path, json=fields, headers=headers)


async def test_an_ollama_is_told_to_load_and_to_put_away(tmp_path: Path, told: list[Any]) -> None:
    async with (
        servers.running(ollama(told)) as server,
        road(tmp_path, server.base_url, backend={"kind": "ollama", "models": ()}) as running,
    ):
        loaded = (await ask(running, "/api/generate", model=MODEL)).json()
        assert (loaded["model"], loaded["response"], loaded["done"]) == (MODEL, "", True)
        assert loaded["done_reason"] == "load"
        put_away = (await ask(running, "/api/chat", model="llava", messages=[], keep_alive="0s")).json()
        assert (put_away["message"]["content"], put_away["done_reason"]) == ("", "unload")
        assert told == [{"model": MODEL}, {"model": "llava:latest", "keep_alive": 0}]
        unknown = await ask(running, "/api/generate", model="unknown")
        assert (unknown.status_code, "unknown" in unknown.json()["error"]) == (404, True)
        assert running.services.admission.in_flight == 0


async def test_what_others_may_be_using_is_not_put_away_for_everybody(tmp_path: Path, told: list[Any]) -> None:
    async with (
        servers.running(ollama(told)) as server,
        road(tmp_path, server.base_url, backend={"kind": "ollama", "models": ()}) as running,
    ):
        services = running.services
        services.directory.users.add("ann")
        services.directory.quotas.set(Quota("user:ann", "requests", 2, "minute"))
        key = services.keys.create("ann's", ("pool",), user_id="ann")
        answered = await ask(running, "/api/generate", key, model=MODEL, keep_alive=0)
        assert (answered.json()["done_reason"], told) == ("unload", [])
        assert (await ask(running, "/api/generate", key, model=MODEL, keep_alive="1h")).status_code == 200
        assert (await ask(running, "/api/generate", key, model=MODEL)).status_code == 429
        assert told == [{"model": MODEL}]


async def test_an_ollama_that_fails_is_an_error(tmp_path: Path, told: list[Any]) -> None:
    server = ollama(told)
    server.answers["/api/generate"] = 500
    async with (
        servers.running(server),
        road(tmp_path, server.base_url, backend={"kind": "ollama", "models": ()}) as running,
    ):
        failed = await ask(running, "/api/generate", model=MODEL)
        assert (failed.status_code, "answers 500" in failed.json()["error"]) == (502, True)
        counted = running.services.metrics.upstream_errors.labels("pool", "failed")
        assert (running.services.admission.in_flight, counted.value) == (0, 1)


async def test_a_model_is_put_away_wherever_it_is_and_no_other_one(tmp_path: Path, told: list[Any]) -> None:
    broken = ollama(told)
    broken.answers["/api/generate"] = 500
    async with (
        servers.running(broken) as one,
        servers.running(ollama(told)) as two,
        road(
            tmp_path,
            one.base_url,
            two.base_url,
            backend={"kind": "ollama", "models": ()},
            routing={"fallbacks": {MODEL: ["llava:latest"]}},
        ) as running,
    ):
        await running.services.lanes["pool"].pool.drain("second", draining=True)  # type: ignore[attr-defined]
        answered = await ask(running, "/api/generate", model=MODEL, keep_alive=0)
        assert (answered.status_code, "first" in answered.json()["error"]) == (502, True)
        assert told == [{"model": MODEL, "keep_alive": 0}]
        (entry,) = running.services.directory.audit.entries(Filter(action="model.unload"))
        assert (entry.actor, entry.address, entry.target) == ("user:owner", "127.0.0.1", f"model:{MODEL}")
        assert entry.after == {"backends": ["first", "second"]}


async def test_admins_say_how_long_a_model_stays(tmp_path: Path, told: list[Any]) -> None:
    async with (
        servers.running(ollama(told)) as server,
        road(tmp_path, server.base_url, backend={"kind": "ollama", "models": ()}) as running,
    ):
        for keep_alive in ("1h30m", -1, None):
            await ask(running, "/api/generate", model=MODEL, keep_alive=keep_alive)
        refused = await ask(running, "/api/generate", model=MODEL, keep_alive="for ever")
        assert (refused.status_code, "keep_alive: " in refused.json()["error"]) == (400, True)
    assert [one.get("keep_alive") for one in told] == ["1h30m", -1, None]
    assert "keep_alive" not in told[-1]


@pytest.mark.parametrize(
    ("keep_alive", "is_time", "is_last"),
    [
        ("0", True, True),
        ("-0.0h0m0s", True, True),
        ("0\u00b5s", True, True),
        (".5s", True, False),
        ("10m", True, False),
        ("", False, False),
        ("5", False, False),
        ("٠s", False, False),
        # Where zeros could be read in many ways, so long a text would take for ever.
        ("0" * 39 + "x", False, False),
        ("0s" * 19 + "0x", False, False),
    ],
)
def test_durations_are_read_as_go_writes_them(keep_alive: str, is_time: bool, is_last: bool) -> None:
    raw = msgspec.json.encode({"model": "m", "keep_alive": keep_alive})
    body = msgspec.json.decode(raw, type=GenerateBody)
    assert (body.is_time, body.is_last) == (is_time, is_last)


async def test_elsewhere_there_is_nothing_to_do(tmp_path: Path) -> None:
    async with (
        servers.running(servers.vllm()) as server,
        road(tmp_path, server.base_url, backend={"kind": "vllm", "models": ()}) as running,
    ):
        for keep_alive, reason in ((None, "load"), ("5m", "load"), (0, "unload"), ("0", "unload"), (-1, "load")):
            answered = await ask(running, "/api/generate", model="Qwen/Qwen3-8B", keep_alive=keep_alive)
            assert answered.json()["done_reason"] == reason
        assert "/api/generate" not in server.asked

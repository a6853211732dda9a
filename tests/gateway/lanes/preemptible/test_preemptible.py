"""Preemptible requests get idle slots and nothing else; they are stopped when the owner needs the machine."""

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.admin import idle
from gateway.identity.caller import MARKET_JOBS
from gateway.quota import Quota
from gateway.settings import CacheSettings
from market.seller.own_gateway import OwnGateway, Running
from runtime.errors import Conflict
from tests.gateway.http.edges import Answered, until
from tests.gateway.lanes.preemptible.preemptible_gateway import SLOTS, Instance, instance
from tests.gateway.requests.roads import nothing_is_left, receive, send, text_of

pytestmark = pytest.mark.anyio


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Instance]:
    async with instance(tmp_path, cache=CacheSettings(answers="all")) as made:
        yield made


def code_of(answered: Answered) -> str:
    return str(answered.error["code"])


async def test_the_owner_comes_and_all_preemptible_requests_end(home: Instance) -> None:
    preemptible_jobs = [await home.come() for _ in range(SLOTS)]
    silent = await home.come("wait")  # no slot is left
    assert (silent.result().status, code_of(silent.result())) == (503, "preemptible_not_now")
    await until(lambda: home.backend.open == SLOTS, 60)
    own = await home.own()
    assert (own.status, text_of(own)) == (200, "It turns.")
    for job in preemptible_jobs:
        heard = await job
        assert (heard.status, code_of(heard)) == (200, "preempted")
        # Every event before is whole.
        assert all(json.loads(event) for event in heard.events)
        assert heard.content.endswith(b"\n\n")
    await until(lambda: home.backend.open == 0, 60)
    await nothing_is_left(home.running)
    assert not home.running.services.preemptible_jobs.stays
    again = await home.come("short")  # and may come again
    assert text_of(await again) == "It turns."


async def test_preemptible_requests_go_on_where_the_owner_needs_no_machine(home: Instance) -> None:
    question: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "seed": 1}
    await receive(await send(home.running, stream=True, **question))
    job = await home.come()
    assert (await receive(await send(home.running, model="nobody's"))).status == 404
    asked = len(home.backend.requests)
    again = await receive(await send(home.running, stream=True, **question))
    assert (again.status, len(home.backend.requests)) == (200, asked)  # it was in the cache
    assert home.running.services.preemptible_jobs.stays
    assert (await home.own()).status == 200
    assert code_of(await job) == "preempted"


async def test_before_its_first_byte_a_preemptible_request_ends_with_a_status(home: Instance) -> None:
    job = await home.come("wait")
    await until(lambda: home.backend.open == 1, 60)
    assert (await home.own()).status == 200
    heard = await job
    assert (heard.status, code_of(heard)) == (503, "preempted")
    assert "retry-after" in heard.headers


async def test_no_preemptible_request_begins_while_own_requests_run_or_wait(home: Instance) -> None:
    asked = [
        await send(home.running, messages=[{"role": "user", "content": "wait"}], stream=True)
        for _ in range(SLOTS + 1)  # the last one waits for a slot
    ]
    services = home.running.services
    await until(lambda: services.admission.in_flight == SLOTS + 1, 60)
    refused = await home.come()
    assert (refused.result().status, code_of(refused.result())) == (503, "preemptible_not_now")
    found = (await home.admin("GET", "/admin/idle")).json()
    assert (found["own_in_flight"], found["queue_empty_s"], found["preemptible_jobs"]) == (SLOTS + 1, 0, 0)
    for _, writer in asked:
        writer.close()
    await until(lambda: services.admission.in_flight == 0, 60)
    job = await home.come()
    assert not job.done()
    job.cancel()


async def test_a_preemptible_request_takes_a_slot_for_each_answer(home: Instance) -> None:
    refused = await home.come(n=SLOTS + 1)
    assert code_of(refused.result()) == "preemptible_not_now"


async def test_preemptible_requests_leave_no_trace_but_their_usage(home: Instance) -> None:
    services = home.running.services
    services.directory.quotas.set(Quota("organization:home", "requests", 1, "minute"))
    bodies = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "seed": 1}
    for _ in range(2):  # over the quota of everybody who lives here, and the same question
        answered = await receive(await send(home.running, home.key, stream=True, **bodies))
        assert (answered.status, text_of(answered)) == (200, "It turns.")
        assert "x-millrace-cache" not in answered.headers
        assert "x-ratelimit-limit-requests" not in answered.headers
    assert len(home.backend.requests) == 2
    assert (await receive(await send(home.running, stream=True))).status == 200  # the owner's one is there still
    rows: list[dict[str, Any]] = []
    async with asyncio.timeout(60):
        while len(rows) < 3:  # The log is written after the ledger, by another thread.
            rows = [row for row in (await home.admin("GET", "/admin/requests")).json() if row["lane"] == "pool"]
    keys = {row["key_id"]: row for row in (await home.admin("GET", "/admin/keys")).json()["keys"]}
    assert [keys[row["key_id"]]["is_preemptible"] for row in rows] == [False, True, True]
    assert keys[rows[1]["key_id"]]["user"] == MARKET_JOBS
    assert rows[1]["completion_tokens"] > 0


async def test_everything_else_is_closed_to_preemptible_keys(home: Instance) -> None:
    root, headers = f"http://127.0.0.1:{home.running.port}", {"authorization": f"Bearer {home.key}"}
    chat = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    asked: list[tuple[str, str, object]] = [
        ("GET", "/v1/models", None),
        ("GET", "/v1/files", None),
        ("POST", "/v1/batches", {"input_file_id": "f", "endpoint": "/v1/chat/completions"}),
        ("GET", "/v1/responses/resp_1", None),
        ("POST", "/v1/responses", {"model": "m", "input": "Hi"}),
        ("POST", "/v1/messages", chat | {"max_tokens": 5}),
        ("POST", "/v1/embeddings", {"model": "m", "input": "Hi"}),
        ("POST", "/api/chat", chat),
        ("POST", "/api/generate", {"model": "m", "keep_alive": 0}),
        ("GET", "/admin/me", None),
        ("GET", "/admin/idle", None),
        ("POST", "/admin/preemptible-key", None),
        ("GET", "/admin/keys", None),
        ("GET", "/accounting/v1/balance", None),
        ("GET", "/accounting/v1/transactions", None),
    ]
    async with httpx.AsyncClient(base_url=root, headers=headers, trust_env=False) as client:
        for method, path, body in asked:
            answered = await client.request(method, path, json=body)
            assert answered.status_code == 403, (method, path, answered.text)
            assert "preemptible requests" in answered.text.lower(), (path, answered.text)
        signed_in = await client.post("/console/login", data={"key": home.key})
        assert signed_in.status_code == 403
    assert home.backend.requests == []


async def test_preemptible_requests_have_no_lane_but_own_machines(tmp_path: Path) -> None:
    """Not what only passes requests on, nor where a third party can read along, though the owner may ask there."""
    async with instance(tmp_path) as home:
        refused = await home.come(millrace={"lane": "cloud"})
        assert refused.result().status in (400, 403)
        unknown = await home.come(model="other")
        assert (unknown.result().status, code_of(unknown.result())) == (404, "model_not_found")
    backends: list[dict[str, Any]] = [{"clearance": "public"}, {"keeps_data": True}]
    for number, strange in enumerate(backends):
        async with instance(tmp_path / str(number), backend=strange) as home:
            stranger = await home.come("short")
            assert (stranger.result().status, code_of(stranger.result())) == (503, "preemptible_not_now")
            assert (await home.admin("GET", "/admin/idle")).json()["models"] == []
            assert home.backend.requests == []
            assert (await home.own()).status == 200


@pytest.mark.parametrize("jobs", [2, 8])
async def test_jobs_that_come_together_have_one_key(tmp_path: Path, jobs: int) -> None:
    async with instance(tmp_path, backend={"slots": jobs}) as home:
        services = home.running.services
        gateway = OwnGateway(lambda: Running(f"http://127.0.0.1:{home.running.port}/v1", services.admin_token))
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}

        async def heard() -> bytes:
            async with gateway.answer("chat", body) as events:
                return b"".join([data async for data in events])

        for key in (None, "mr-of-an-earlier-start"):
            gateway._key = key
            before = len(services.keys.rows())
            assert all(b"turns." in answer for answer in await asyncio.gather(*(heard() for _ in range(jobs))))
            assert len(services.keys.rows()) == before + 1
        await gateway.aclose()


async def test_what_a_vllm_caches_of_preemptible_requests_is_theirs_alone(tmp_path: Path) -> None:
    async with instance(tmp_path, backend={"kind": "vllm"}) as home:
        for salt in ("mine", None):
            assert (await (await home.come("short", cache_salt=salt))).status == 200
        salts = [json.loads(body)["cache_salt"] for body in home.backend.requests]
        assert len(set(salts)) == 2
        assert all(salt.startswith(f"{MARKET_JOBS}:") for salt in salts)
        await home.own()
        assert "cache_salt" not in json.loads(home.backend.requests[-1])


async def test_no_user_has_the_name_of_market_jobs(home: Instance) -> None:
    users, keys = home.running.services.directory.users, home.running.services.keys
    for refused in (
        partial(users.add, MARKET_JOBS),
        partial(users.remove, MARKET_JOBS),
        partial(keys.create, "k", ("pool",), user_id=MARKET_JOBS),
    ):
        with pytest.raises(Conflict):
            refused()
    told: list[str] = []
    keys.on_revoked = told.extend
    before = keys.find(home.key)
    await home.admin("POST", "/admin/preemptible-key")
    assert before
    assert told == [before.key_id]
    keys.refused = {caller.key_id} if (caller := keys.find(home.running.key)) else ()
    assert caller
    assert keys.find_by_id(caller.key_id) is None


async def test_the_load_of_preemptible_requests_is_nothing_to_the_cards_condition(
    home: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    preemptible_jobs = home.running.services.preemptible_jobs
    monkeypatch.setattr(idle, "gpu_percent", lambda: 90.0 if preemptible_jobs.stays else 7.0)
    monkeypatch.setattr(idle, "SENSED_S", 0.0)
    services = home.running.services
    pinned = services.bookkeeper.recounter.tokenizers.pinned
    watch = idle.IdleWatch(preemptible_jobs, services.admission, services.lanes, pinned)
    before = await watch.state()
    job = await home.come()
    assert (await watch.state()).gpu_percent == 7.0
    job.cancel()
    await until(lambda: not preemptible_jobs.stays, 60)
    monkeypatch.setattr(idle, "gpu_percent", lambda: 90.0)
    assert (await watch.state()).gpu_percent == 7.0  # a mean over the last second has the job's in it
    monkeypatch.setattr(idle, "SETTLES_S", -100.0)
    later = await watch.state()
    assert later.gpu_percent == 90.0
    monkeypatch.setattr(idle, "gpu_percent", lambda: 91.0)
    assert (await watch.state()).version == later.version > before.version
    assert (await home.own()).status == 200  # between two looks
    assert (await watch.state()).version > later.version


async def test_a_key_ends_with_the_next_one_and_with_the_gateway(tmp_path: Path) -> None:
    async with instance(tmp_path) as home:
        await (await home.come("short"))
        later = (await home.admin("POST", "/admin/preemptible-key")).json()
        replaced = (await home.come("short")).result()
        assert (replaced.status, code_of(replaced)) == (401, "invalid_api_key")
        valid = [row for row in (await home.admin("GET", "/admin/keys")).json()["keys"] if row["is_preemptible"]]
        assert [row["revoked_ns"] is None for row in valid] == [True, False]
    async with instance(tmp_path) as home:
        forgotten = Instance(home.running, home.backend, later["key"])
        refused = (await forgotten.come("short")).result()
        assert (refused.status, code_of(refused)) == (401, "invalid_api_key")
        # Not even before the agent has asked for another: what was made by an earlier start means nothing.
        home.running.services.preemptible_jobs._key_id = None
        services = home.running.services
        made = services.keys.issue("of another start", ("pool",), user_id=MARKET_JOBS, is_preemptible=True)
        stale = Instance(home.running, home.backend, made.token)
        assert (await stale.come("short")).result().status == 401
        changed = await home.admin("PATCH", f"/admin/keys/{made.row.key_id}", json={"priority": 0})
        assert changed.json()["is_preemptible"]  # no change of its terms makes it the owner's


async def test_a_waiting_agent_hears_of_a_change(home: Instance) -> None:
    found = (await home.admin("GET", "/admin/idle")).json()
    assert found["models"] == [
        {
            "id": "m",
            "slots_free": SLOTS,
            "slots": SLOTS,
            "context_tokens": None,
            "weights_sha256": None,
            "tokenizer_sha256": None,
            "tokenizer_path": None,
            "quantization": None,
        }
    ]
    assert found["queue_empty_s"] > 0
    version = {"version": found["version"]}
    same = (await home.admin("GET", "/admin/idle", params=version)).json()
    assert same["version"] == found["version"]
    waiting = asyncio.create_task(home.admin("GET", "/admin/idle", params=version | {"wait_s": 15}))
    job = await home.come()
    changed = (await waiting).json()
    assert changed["version"] != found["version"]
    assert (changed["preemptible_jobs"], changed["models"][0]["slots_free"]) == (1, SLOTS - 1)
    job.cancel()

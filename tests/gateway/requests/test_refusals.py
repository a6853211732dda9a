"""What a caller's money or limits do not cover is left out; what is left serves, within its own bounds."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accounting.money import Price
from gateway.app import Services
from gateway.batches.reply import BatchReply
from gateway.dialects.routes import ROUTES
from gateway.identity.caller import Caller
from gateway.quota import Measure, Quota
from gateway.requests.batch_jobs.dispatch import send_request
from gateway.settings import PoolBackend, RoutingSettings
from runtime.request_ids import new_request_id
from tests.gateway.http.edges import Writer, backend, until, whole
from tests.gateway.requests import roads
from tests.gateway.requests.roads import ANSWER, nothing_is_left, receive, road, send, with_paid_lane
from tests.gateway.requests.test_turns import ONE_SLOT, Mill

pytestmark = pytest.mark.anyio

ANN = Caller("key-1", "mr-1", "owner", "home", frozenset({"pool", "cloud"}))
# Seconds are worth so much that waiting costs more than paying.
IN_A_HURRY = RoutingSettings(target_s=1.0, time_nano_per_s=10**12, speed_nano_per_s=0)
CHAT = next(route for route in ROUTES if route.path == "/v1/chat/completions")


@pytest.fixture
def dear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten tokens cost ten dollars; the account has one."""
    monkeypatch.setattr(roads, "PRICE", replace(roads.PRICE, price=Price(0, 0, 10**15)))


async def answer(body: bytes, writer: Writer) -> None:
    writer.write(whole(ANSWER))


async def asked(services: Services, caller: Caller, **fields: Any) -> BatchReply:
    body = {"model": "m", "messages": [{"role": "user", "content": "Who?"}], "max_tokens": 10} | fields
    return await send_request(
        services.requests.ordinary, caller, CHAT, CHAT.read(json.dumps(body).encode()), new_request_id()
    )


@pytest.mark.usefixtures("dear")
async def test_who_cannot_pay_waits_for_an_own_machine(tmp_path: Path) -> None:
    mill = Mill()
    async with (
        backend(mill) as desk,
        backend(answer) as acme,
        road(tmp_path, desk.base_url, backend=ONE_SLOT, routing=IN_A_HURRY) as own,
        with_paid_lane(own, acme.base_url, "m") as running,
    ):
        first = await send(running, max_tokens=10)
        await until(lambda: mill.busy == 1)
        others = [await send(running, max_tokens=10) for _ in range(3)]
        await until(lambda: running.services.turns.all_waiting == 3)
        mill.go_on.set()
        for connection in (first, *others):
            answered = await receive(connection)
            assert (answered.status, answered.headers["x-millrace-lane"]) == (200, "pool")
        assert mill.busiest == 1
        assert not acme.requests
        await nothing_is_left(running)


@pytest.mark.usefixtures("dear")
async def test_where_nothing_free_serves_the_caller_hears_of_the_money(tmp_path: Path) -> None:
    mill = Mill()
    routing = IN_A_HURRY.model_copy(update={"queue_s": 0.2})
    async with (
        backend(mill) as desk,
        backend(answer) as acme,
        road(tmp_path, desk.base_url, backend=ONE_SLOT, routing=routing) as own,
        with_paid_lane(own, acme.base_url, "m") as running,
    ):
        first = await send(running, max_tokens=10)
        await until(lambda: mill.busy == 1)
        refused = await receive(await send(running, max_tokens=10))
        assert (refused.status, refused.error["code"]) == (402, "insufficient_credit")
        mill.go_on.set()
        assert (await receive(first)).status == 200
        await nothing_is_left(running)


@pytest.mark.parametrize("measure", ["requests", "concurrency", "tokens"])
async def test_limits_on_a_fallback_hold_for_who_asked_for_another(tmp_path: Path, measure: Measure) -> None:
    """Two fallbacks: the first one's limit lets one request pass, the next goes to the second."""
    amount = 20 if measure == "tokens" else 1
    limit = Quota("key:key-1", measure, amount, None if measure == "concurrency" else "minute", "b")
    caller = replace(ANN, quotas=(limit,))
    mill = Mill()
    routing = RoutingSettings(fallbacks={"m": ("b", "c")})
    models = {"models": ("b", "c"), "slots": 2}
    async with backend(mill) as desk, road(tmp_path, desk.base_url, backend=models, routing=routing) as running:
        services = running.services
        (counter,) = (
            services.limits.plans.beside(caller, "b").counted or services.limits.plans.of(caller, "b").tokens
        )
        first = asyncio.create_task(asked(services, caller))
        await until(lambda: mill.busy == 1)
        assert counter.left < amount
        second = asyncio.create_task(asked(services, caller))
        await until(lambda: mill.busy == 2)
        mill.go_on.set()
        assert (await first).status == (await second).status == 200
        assert [json.loads(body)["model"] for body in desk.requests] == ["b", "c"]
        assert counter.held == 0
        assert (counter.left == 1) == (measure == "concurrency")
        await nothing_is_left(running)


@pytest.mark.parametrize("measure", ["requests", "concurrency", "tokens"])
async def test_limits_on_a_model_hold_for_who_asks_by_an_alias(tmp_path: Path, measure: Measure) -> None:
    amount = 20 if measure == "tokens" else 1
    limit = Quota("key:key-1", measure, amount, None if measure == "concurrency" else "minute", "b")
    caller = replace(ANN, quotas=(limit,))
    mill = Mill()
    pool, models = {"aliases": {"m": ("b",)}}, {"models": ("b",), "slots": 3}
    async with backend(mill) as desk, road(tmp_path, desk.base_url, backend=models, pool=pool) as running:
        services = running.services
        plan = services.limits.plans.of(caller, "b")
        (counter,) = plan.counted or plan.tokens
        first = asyncio.create_task(asked(services, caller))
        await until(lambda: mill.busy == 1)
        assert counter.left < amount
        assert (await asked(services, caller)).status == 429
        assert (await asked(services, caller, model="b")).status == 429
        mill.go_on.set()
        assert (await first).status == 200
        assert counter.held == 0
        assert (counter.left == 1) == (measure == "concurrency")
        assert len(desk.requests) == 1
        await nothing_is_left(running)


async def test_behind_the_same_alias_another_model_answers(tmp_path: Path) -> None:
    """The limit on one of them is reached: a backend that gives the other one for the alias is asked."""
    caller = replace(ANN, quotas=(Quota("key:key-1", "requests", 1, "minute", "b"),))
    mill = Mill()
    mill.go_on.set()
    pool = {"aliases": {"m": ("b", "c")}}
    async with (
        backend(mill) as desk,
        road(tmp_path, desk.base_url, backend={"models": ("b",)}, pool=pool) as running,
    ):
        other = PoolBackend(name="other", base_url=desk.base_url, kind="openai", models=("c",))
        await running.services.lanes["pool"].pool.add(other)  # type: ignore[attr-defined]
        answers = [(await asked(running.services, caller)).status for _ in range(4)]
        assert answers == [200] * 4
        models = [json.loads(body)["model"] for body in desk.requests]
        assert models.count("b") <= 1
        await nothing_is_left(running)


async def test_a_budget_on_a_paid_fallback_is_reserved_and_charged(tmp_path: Path) -> None:
    caller = replace(ANN, quotas=(Quota("key:key-1", "spend", 15, "month", "paid"),))
    usage = json.loads(ANSWER) | {"usage": {"prompt_tokens": 3, "completion_tokens": 7}}

    async def bill(body: bytes, writer: Writer) -> None:
        writer.write(whole(json.dumps(usage).encode()))

    routing = RoutingSettings(fallbacks={"m": ("paid",)})
    async with (
        backend(bill) as acme,
        road(tmp_path, routing=routing) as own,
        with_paid_lane(own, acme.base_url, "paid") as running,
    ):
        services = running.services
        (counter,) = services.limits.plans.of(caller, "paid").spend
        assert (await asked(services, caller)).status == 200
        assert (counter.held, counter.left) == (0, 8)
        refused = await asked(services, caller)
        assert refused.status == 402
        assert b"budget_exceeded" in refused.body
        assert (counter.held, counter.left) == (0, 8)
        assert len(acme.requests) == 1

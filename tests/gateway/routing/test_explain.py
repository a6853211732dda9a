"""Who asks for a route is told what would be done, in numbers and rules; bad questions are refused by field."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from cluster.trust.addresses import Target
from gateway.api.authority import HEADER
from gateway.app import Services, create_app, open_services
from gateway.lanes.base import Lane
from gateway.routing.router import Router
from gateway.settings import LaneName, Settings
from tests.databases import prepared
from tests.gateway.routing.offers import CLOUD, CLUSTER, EVERYBODY, POOL, Bench, call

pytestmark = pytest.mark.anyio

REQUEST = {"model": "m", "messages": [{"role": "user", "content": "Why does the wheel turn?"}], "stream": True}


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[Services]:
    """A gateway over a local machine and a provider, neither of which is asked."""
    settings, folder = Settings(data_dir=tmp_path), prepared(tmp_path)
    lanes: dict[LaneName, Lane] = dict(Bench(POOL, CLOUD).lanes)
    async with open_services(settings, folder) as opened:
        router = Router(lanes, opened.health, settings.routing, settings.policy)
        yield replace(opened, lanes=lanes, router=router)


async def ask(services: Services, body: dict[str, Any]) -> httpx.Response:
    transport = httpx.ASGITransport(create_app(services, Target("127.0.0.1", 1)))
    headers = {HEADER: services.admin_token}
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers) as client:
        return await client.post("/admin/route/explain", json=body)


async def test_the_explanation_is_the_decision(services: Services) -> None:
    token = services.keys.create("k", ("pool", "cloud"))
    caller = services.keys.find(token)
    assert caller
    answer = await ask(services, {"request": REQUEST, "key": caller.key_prefix})
    assert answer.status_code == 200, answer.text
    decided = services.router.decide(caller, call(tenant=caller.user_id)).as_data()
    assert answer.json() == {"model": "m", "key": caller.key_prefix, **decided}
    assert [c["lane"] for c in decided["candidates"]] == ["pool:desk", "cloud:big-m"]


async def test_without_a_key_it_is_any_new_one(services: Services) -> None:
    found = (await ask(services, {"request": REQUEST})).json()
    assert found["key"] == "any new key"
    (rejected,) = found["rejected"]
    assert (rejected["lane"], rejected["rule"]) == ("cloud:big-m", "lanes")
    assert rejected["remedy"]


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({}, 400, "request"),
        ({"request": {"model": "m"}}, 400, "messages"),
        ({"request": {"messages": [{"role": "user", "content": "x"}]}}, 400, "model"),
        ({"request": REQUEST | {"temperature": 9}}, 400, "temperature"),
        ({"request": REQUEST | {"provider": {"max_price": {"prompt": "dear"}}}}, 400, "provider.max_price.prompt"),
        ({"request": REQUEST, "key": "mr-none"}, 404, "mr-none"),
        ({"request": REQUEST, "lane": "pool"}, 400, "lane"),
    ],
)
async def test_a_question_that_is_none_is_refused_by_its_field(
    services: Services, body: dict[str, Any], status: int, word: str
) -> None:
    answer = await ask(services, body)
    assert answer.status_code == status, answer.text
    assert word in answer.json()["error"]["message"]


def test_a_header_names_no_file_of_a_machine_that_is_not_ready() -> None:
    starting = replace(CLUSTER, state="starting", note="node-1 ended: cannot read /home/op/data/identity")
    bench = Bench(starting, POOL)
    reason = bench.router.explain(EVERYBODY, call()).reason
    assert "is not ready: node-1 ended: cannot read [path]" in reason

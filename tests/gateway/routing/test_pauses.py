"""A paused lane gets nothing until it is resumed: over a restart, in other gateways, and written down."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cluster.trust.addresses import Target
from gateway.app import create_app, open_services
from gateway.errors import PreemptibleNotNow
from gateway.identity.audit import MACHINE, Filter
from gateway.requests.no_backend import no_backend_error
from gateway.routing import pauses
from gateway.routing.pauses import Pausable, Pauses
from gateway.settings import CloudModel, CloudSettings, Settings
from tests.databases import prepared
from tests.gateway.api.conftest import Served
from tests.gateway.routing.offers import POOL, call

pytestmark = pytest.mark.anyio

QUESTION = {"request": {"model": "m", "messages": [{"role": "user", "content": "Why?"}]}}
MODEL = CloudModel(model="openai/m", prompt_usd_per_mtok="1.00", completion_usd_per_mtok="2.00")


async def explained(served: Served, key: str, **lane: str) -> dict[str, Any]:
    question = {"request": QUESTION["request"] | ({"millrace": lane} if lane else {}), "key": key}
    async with served.machine as machine:
        answer = await machine.post("/admin/route/explain", json=question)
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


async def told(served: Served, method: str, name: str) -> tuple[int, Any]:
    async with served.machine as machine:
        answer = await machine.request(method, f"/admin/pauses/{name}")
    return answer.status_code, answer.json()


async def test_a_paused_lane_gets_nothing_until_it_is_resumed_over_a_restart(tmp_path: Path) -> None:
    settings, folder = Settings(data_dir=tmp_path, cloud=CloudSettings(models={"m": MODEL})), prepared(tmp_path)
    async with open_services(settings, folder) as services:
        served = Served(services, create_app(services, Target("127.0.0.1", 1)))
        token = services.keys.create("k", ("cloud",))
        key = services.keys.rows()[-1].prefix
        assert [c["lane"] for c in (await explained(served, key))["candidates"]] == ["cloud:m"]
        for _ in range(2):
            status, pause = await told(served, "PUT", "cloud")
            assert (status, pause["name"], pause["actor"]) == (200, "cloud", "machine")
        found = await explained(served, key)
        assert (found["candidates"], found["rejected"][0]["rule"]) == ([], "paused")
        # A caller of something else does not hear of the pause.
        assert (await explained(served, key, lane="pool"))["rejected"][0]["rule"] == "lane"
        caller = services.keys.find(token)
        assert caller
        error = no_backend_error(call(), services.router.decide(caller, call()))
        assert (error.code, "resume" in error.message) == ("policy_paused", True)
        status, refused = await told(served, "PUT", "pool")
        assert (status, refused["error"]["param"]) == (400, "name")
    async with open_services(settings, folder) as services:
        served = Served(services, create_app(services, Target("127.0.0.1", 1)))
        assert (await explained(served, key))["candidates"] == []
        assert (await told(served, "DELETE", "cloud"))[0] == 200
        assert (await explained(served, key))["candidates"]
        entries = services.directory.audit.entries(Filter(target="pause:cloud"))
        assert [entry.action for entry in entries] == ["pause.end", "pause.begin"]


async def test_another_gateway_of_the_database_learns_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses, "LOOK_EVERY_S", 0.02)
    folder = prepared(tmp_path)
    async with open_services(Settings(data_dir=tmp_path), folder) as services:
        heard: asyncio.Queue[frozenset[Pausable]] = asyncio.Queue()
        directory = services.directory
        other = Pauses(directory.audit._read, directory.write, heard.put_nowait)
        other.start()
        async with asyncio.timeout(60):
            await services.pauses.pause("selling", MACHINE)
            assert await heard.get() == {"selling"}
            with pytest.raises(PreemptibleNotNow, match="paused selling"):
                services.preemptible_jobs.place_for([POOL], 1)
            await services.pauses.resume("selling", MACHINE)
            assert await heard.get() == set()
            assert services.preemptible_jobs.place_for([POOL], 1) is POOL
        await other.stop()

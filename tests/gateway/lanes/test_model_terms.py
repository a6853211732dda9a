"""Aliases and prices that operators set: in force at once, in other gateways and after a restart, written down."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from accounting.metering.versions import versions_of
from accounting.money import Nano, Price
from cluster.trust.addresses import Target
from gateway.app import Services, create_app, open_services
from gateway.billing import model_terms
from gateway.billing.model_terms import Alias, ModelTerms, OwnPrice, Terms
from gateway.identity.audit import MACHINE, Filter
from gateway.lanes.pool.lane import PoolLane
from gateway.settings import CloudModel, CloudSettings, Settings
from gateway.settings.pool import PoolSettings
from tests.databases import prepared
from tests.fakes import pool_servers as servers
from tests.gateway.api.conftest import Served

pytestmark = pytest.mark.anyio

FAST = CloudModel(model="openai/m", prompt_usd_per_mtok="1.00", completion_usd_per_mtok="2.00")
LISTED = CloudModel(model="openai/gpt-4o-mini")
UNKNOWN = CloudModel(model="nobody/knows")
CLOUD = CloudSettings(models={"fast": FAST, "listed": LISTED, "unknown": UNKNOWN})


def settings_of(folder: Path, base_url: str = "http://127.0.0.1:1/v1") -> Settings:
    backends = [{"name": "desk", "base_url": base_url, "kind": "ollama"}]
    pool = PoolSettings.model_validate({"backends": backends, "aliases": {"mini": ["llava:latest"]}})
    return Settings(data_dir=folder, cloud=CLOUD, pool=pool)


def price_of(services: Services, name: str) -> Price | None:
    (offer,) = services.lanes["cloud"].offers(name)
    return offer.price.price if offer.price else None


def served_as(services: Services, alias: str) -> list[str | None]:
    return [offer.served_as for offer in services.lanes["pool"].offers(alias)]


async def asked(served: Served, method: str, path: str, **body: Any) -> tuple[int, Any]:
    async with served.machine as machine:
        answer = await machine.request(method, path, json=body or None)
    return answer.status_code, answer.json()


async def test_a_price_holds_from_now_on_and_back_over_a_restart(tmp_path: Path) -> None:
    settings, folder = settings_of(tmp_path), prepared(tmp_path)
    of_list = Price(150_000_000, 75_000_000, 600_000_000)
    wanted = {"prompt_usd_per_mtok": "0.30", "completion_usd_per_mtok": "4"}
    async with open_services(settings, folder) as services:
        served = Served(services, create_app(services, Target("127.0.0.1", 1)))
        (before,) = services.lanes["cloud"].offers("fast")
        for name in ("fast", "listed", "unknown"):
            status, done = await asked(served, "PUT", "/admin/prices", model=name, **wanted)
            assert (status, done["prompt_usd_per_mtok"], done["actor"]) == (200, "0.30", "machine"), done
            assert price_of(services, name) == Price(300_000_000, 300_000_000, 4_000_000_000)
        assert before.price, "what is under way costs what it did"
        assert before.price.price.prompt_nano == 10**9
        # Whatever anybody is charged by stands in the book of prices first.
        with services.directory.read() as session:
            versions = versions_of(session, "fast")
        assert [(each.priced.price.prompt_nano, each.priced.source) for each in versions] == [
            (300_000_000, "operators"),
            (10**9, "settings"),
        ]
        for model, field, value in (
            ("fast", "prompt_usd_per_mtok", "-1"),
            ("fast", "completion_usd_per_mtok", "a lot"),
            ("m", "model", "m"),
        ):
            status, refused = await asked(
                served, "PUT", "/admin/prices", **(wanted | {"model": model, field: value})
            )
            assert (status, refused["error"]["param"]) == (400, field)
    async with open_services(settings, folder) as services:
        served = Served(services, create_app(services, Target("127.0.0.1", 1)))
        assert price_of(services, "listed") == Price(300_000_000, 300_000_000, 4_000_000_000)
        for name in ("fast", "listed", "unknown"):
            assert (await asked(served, "DELETE", f"/admin/prices?model={name}"))[0] == 200
        assert price_of(services, "fast") == Price(10**9, 10**9, 2 * 10**9)
        assert price_of(services, "listed") == of_list
        assert price_of(services, "unknown") is None
        assert (await asked(served, "DELETE", "/admin/prices?model=fast"))[0] == 404
        with services.directory.read() as session:
            assert [each.priced.source for each in versions_of(session, "fast")][:2] == ["settings", "operators"]
        entries = services.directory.audit.entries(Filter(target="model:fast"))
        assert [entry.action for entry in entries] == ["price.remove", "price.set"]


async def test_an_alias_goes_over_that_of_the_settings_and_back(tmp_path: Path) -> None:
    async with (
        servers.running(servers.ollama()) as server,
        open_services(settings_of(tmp_path, server.base_url), prepared(tmp_path)) as services,
    ):
        served = Served(services, create_app(services, Target("127.0.0.1", 1)))
        assert (served_as(services, "mini"), served_as(services, "gpt-4o")) == (["llava:latest"], [])
        assert (await asked(served, "PUT", "/admin/aliases", alias="mini", models=["fast", "qwen3:8b"]))[0] == 200
        assert (await asked(served, "PUT", "/admin/aliases", alias="gpt-4o", models=["qwen3:8b", "qwen3:8b"]))[
            0
        ] == 200
        assert (served_as(services, "mini"), served_as(services, "gpt-4o")) == (["qwen3:8b"], ["qwen3:8b"])
        assert services.answers._aliases() == {"mini": ("fast", "qwen3:8b"), "gpt-4o": ("qwen3:8b",)}
        listed = (await asked(served, "GET", "/admin/aliases"))[1]
        assert [(each["alias"], each["origin"]) for each in listed] == [("gpt-4o", "set"), ("mini", "set")]
        # A backend that comes later knows them, too.
        lane = services.lanes["pool"]
        assert isinstance(lane, PoolLane)
        beside = settings_of(tmp_path, server.base_url).pool.backends[0].model_copy(update={"name": "later"})
        await lane.pool.add(beside)
        assert served_as(services, "gpt-4o") == ["qwen3:8b", "qwen3:8b"]
        for alias in ("mini", "gpt-4o"):
            assert (await asked(served, "DELETE", f"/admin/aliases?alias={alias}"))[0] == 200
        assert set(served_as(services, "mini")) == {"llava:latest"}
        assert served_as(services, "gpt-4o") == []
        assert (await asked(served, "DELETE", "/admin/aliases?alias=mini"))[0] == 404, "the settings' stays"
        for alias, models, field in (("../x", ["a"], "alias"), ("a", ["a"], "models"), ("a", ["b\n"], "models")):
            status, refused = await asked(served, "PUT", "/admin/aliases", alias=alias, models=models)
            assert (status, refused["error"]["param"]) == (400, field)
        entries = services.directory.audit.entries(Filter(target="model:gpt-4o"))
        assert [entry.action for entry in entries] == ["alias.remove", "alias.set"]


async def test_members_set_neither(tmp_path: Path) -> None:
    async with open_services(settings_of(tmp_path), prepared(tmp_path)) as services:
        served = Served(services, create_app(services, Target("127.0.0.1", 1)))
        services.directory.users.add("ann")
        async with served.bearer(served.key_of("ann")) as ann:
            for method, path in (("GET", "/admin/aliases"), ("PUT", "/admin/prices"), ("DELETE", "/admin/prices")):
                assert (await ann.request(method, path)).status_code == 403


async def test_another_gateway_of_the_database_learns_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_terms, "LOOK_EVERY_S", 0.02)
    async with (
        servers.running(servers.ollama()) as server,
        open_services(settings_of(tmp_path, server.base_url), prepared(tmp_path)) as services,
    ):
        directory = services.directory
        pool = services.lanes["pool"]
        assert isinstance(pool, PoolLane)
        # The same lanes, told by another one's words.
        other = ModelTerms(directory.audit._read, directory.write, services.lanes)
        await services.model_terms.stop()
        await other.set_alias(Alias("elsewhere", ("qwen3:8b",), 1, "machine"), MACHINE)
        await other.set_price(OwnPrice("fast", Nano(5), Nano(6), 1, "machine"), MACHINE)
        pool.pool.set_aliases({})
        assert services.model_terms.now.aliases == ()
        await services.model_terms.start()
        async with asyncio.timeout(60):
            assert served_as(services, "elsewhere") == ["qwen3:8b"]
            await other.remove_alias("elsewhere", MACHINE)
            await other.remove_price("fast", MACHINE)
            while services.model_terms.now != Terms():
                await asyncio.sleep(0.01)
        assert served_as(services, "elsewhere") == []

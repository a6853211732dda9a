"""The Models pages: what runs where for whom, servers in and out, memory, and whether a model fits."""

import asyncio
import html
import re
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cluster.chat_model import ChatModel
from cluster.trust.addresses import Target
from gateway.app import create_app, open_services
from gateway.console.pages.models.state import FailedRuns
from gateway.identity.audit import Filter
from gateway.settings import CloudModel, CloudSettings, Settings
from tests.cluster.test_joining import until
from tests.clusters import DEMO_MODEL, PATIENCE_S
from tests.console.browsing import Visit, visiting
from tests.console.test_live import watching
from tests.databases import prepared
from tests.fakes import pool_servers as servers
from tests.gateway.api.conftest import Served

pytestmark = pytest.mark.anyio

MODELS = "/console/models"
MODEL = "qwen3:8b"


def audited(served: Served, action: str) -> list[str]:
    return [entry.target for entry in served.services.directory.audit.entries(Filter(action=action))]


async def added(owner: Visit, base_url: str, **fields: Any) -> None:
    answer = await owner.post(f"{MODELS}/servers", name="desk", base_url=base_url, kind="ollama", **fields)
    assert answer.status_code == 303, answer.text


async def test_a_server_comes_loads_puts_away_and_goes(served: Served) -> None:
    told: list[Any] = []
    server = servers.ollama()

    def generate(body: Any) -> Any:
        told.append(body)
        return {"done": True}

    server.answers["/api/generate"] = generate
    async with servers.running(server), visiting(served) as owner:
        bad = await owner.post(f"{MODELS}/servers", name="my desk", base_url="desk:11434", slots="0")
        assert bad.status_code == 400
        assert bad.text.count('aria-invalid="true"') == 3
        assert 'value="my desk"' in bad.text
        await added(owner, server.base_url, api_key="secret-of-the-desk")
        shown = await owner.get(MODELS)
        assert MODEL in shown.text
        assert "secret-of-the-desk" not in shown.text
        twice = await owner.post(f"{MODELS}/servers", name="desk", base_url=server.base_url)
        assert (twice.status_code, "remove it first" in twice.text) == (400, True)
        one = await owner.get(f"{MODELS}/of", model=MODEL)
        assert "pool:desk" in one.text
        for wanted in ("load", "unload"):
            assert (await owner.post(f"{MODELS}/memory", model=MODEL, wanted=wanted)).status_code == 303
        assert told == [{"model": MODEL}, {"model": MODEL, "keep_alive": 0}]
        answer = await owner.post(f"{MODELS}/servers/desk/drain", htmx=True)
        assert (answer.status_code, answer.headers["hx-redirect"]) == (204, f"{MODELS}#servers")
        assert "Resume</button>" in (await owner.get(MODELS)).text
        await owner.post(f"{MODELS}/servers/desk/undrain")
        assert (await owner.post(f"{MODELS}/servers/desk/melt")).status_code == 404
        assert (await owner.post(f"{MODELS}/servers/nobody/drain")).status_code == 404
        await owner.post(f"{MODELS}/servers/desk/remove")
        assert (await owner.get(f"{MODELS}/of", model=MODEL)).status_code == 404
    assert audited(served, "pool.add") == audited(served, "pool.remove") == ["backend:desk"]
    assert audited(served, "model.unload") == [f"model:{MODEL}"]


async def test_servers_are_looked_for_and_added_from_what_was_found(served: Served) -> None:
    server = servers.ollama()
    async with servers.running(server), visiting(served) as owner:
        nothing = await owner.post(f"{MODELS}/servers/scan")
        assert (nothing.status_code, "name hosts to scan" in nothing.text) == (400, True)
        seen = await owner.post(f"{MODELS}/servers/scan", hosts="127.0.0.1", ports=f"{server.port}")
        assert seen.status_code == 200, seen.text
        assert "Ollama" in seen.text
        assert MODEL in seen.text


async def test_members_see_what_their_keys_may_name_and_nothing_of_servers(served: Served) -> None:
    served.services.directory.users.add("ann")
    server = servers.ollama()
    async with servers.running(server), visiting(served) as owner, visiting(served, "ann") as ann:
        await added(owner, server.base_url)
        shown = await ann.get(MODELS)
        assert shown.status_code == 200
        assert MODEL not in shown.text
        assert server.base_url not in shown.text
        assert (await ann.get(f"{MODELS}/of", model=MODEL)).status_code == 404
        for path in ("fit", "servers", "servers/scan", "servers/desk/drain", "memory", "run", "cluster/stop"):
            asked = ann.get if path == "fit" else ann.post
            assert (await asked(f"{MODELS}/{path}")).status_code == 403, path
        await owner.post(f"{MODELS}/servers/desk/remove")


async def test_advice_and_then_the_model_is_run(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = served.services.controller
    begun, may_read, read = threading.Event(), threading.Event(), ChatModel._read_model

    def read_later(*args: Any) -> Any:
        begun.set()
        assert may_read.wait(PATIENCE_S)
        return read(*args)

    monkeypatch.setattr(ChatModel, "_read_model", read_later)
    monkeypatch.setattr("gateway.console.pages.models.cluster._PATIENCE_S", 0.1)
    async with visiting(served) as owner:
        assert "Check hardware fit" in (await owner.get(f"{MODELS}/fit")).text
        unknown = await owner.get(f"{MODELS}/fit", model="nowhere", context_tokens="12")
        assert (unknown.status_code, unknown.text.count('aria-invalid="true"')) == (400, 1)
        unknown = await owner.get(f"{MODELS}/fit", model="nowhere")
        assert (unknown.status_code, "neither a folder" in unknown.text) == (400, True)
        advised = await owner.get(f"{MODELS}/fit", model=str(DEMO_MODEL), context_tokens="128")
        assert "the cluster has no machine" in advised.text
        assert "No model on your machines" in (await owner.get(MODELS)).text
        filled = (await owner.get(f"{MODELS}/run", model="acme/coder", context_tokens="128")).text
        assert ('value="acme/coder"' in filled, 'value="128"' in filled) == (True, True)
        done = await owner.post(
            f"{MODELS}/run", model=str(DEMO_MODEL), name="org/coder", idle_min="2.5", priority="70", pin="true"
        )
        assert done.headers["location"] == f"{MODELS}#cluster-models"
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        assert "reading" in (await owner.get(MODELS)).text
        again = await owner.post(f"{MODELS}/run", model=str(DEMO_MODEL), name="org/coder", idle_min="2.5")
        assert (again.status_code, re.findall(r'name="(\w+)"[^>]*aria-invalid', again.text)) == (400, ["name"])
        assert ('value="2.5"' in again.text, "already has a model" in again.text) == (True, True)
        may_read.set()
        await until(lambda: controller.models[-1].model is not None or controller.chats[-1].model is not None)
        shown = (await owner.get(MODELS)).text
        for part in ("org/coder", DEMO_MODEL.name, "pinned", "2.5 min", ">70<"):
            assert part in shown, part
        model = controller.chats[-1].model
        assert model
        assert model.manifest.digest in (await owner.get(f"{MODELS}/of", model="org/coder")).text
    assert audited(served, "cluster.model.run") == ["model:org/coder"]


async def test_a_model_is_stopped_loaded_and_removed(served: Served) -> None:
    async with visiting(served) as owner:
        await owner.post(f"{MODELS}/run", model=str(DEMO_MODEL), name="writer")
        await until(
            lambda: any(state.model == "writer" for state in served.services.controller.topology().deployments)
        )
        bad = await owner.post(f"{MODELS}/run", model="nowhere at all", idle_min="soon")
        assert (bad.status_code, re.findall(r'name="(\w+)"[^>]*aria-invalid', bad.text)) == (400, ["idle_min"])
        assert ('value="soon"' in bad.text, 'value="nowhere at all"' in bad.text) == (True, True)
        bad = await owner.post(f"{MODELS}/run", model="nowhere at all")
        assert (bad.status_code, re.findall(r'name="(\w+)"[^>]*aria-invalid', bad.text)) == (400, ["model"])
        async with watching(served, owner, path=f"{MODELS}/live") as stream:
            await stream.until("models/run?replace=writer")
        assert '<option value="writer" selected' in (await owner.get(f"{MODELS}/run", replace="writer")).text
        bad = await owner.post(f"{MODELS}/run", model=str(DEMO_MODEL), replace="none")
        assert (bad.status_code, re.findall(r'name="(\w+)"[^>]*aria-invalid', bad.text)) == (400, ["replace"])
        for what in ("stop", "load", "remove"):
            assert (await owner.post(f"{MODELS}/cluster/{what}", model="writer")).status_code == 303
        assert "writer was removed" in (await owner.get(MODELS)).text
        assert "writer" not in (await owner.get(MODELS)).text
        for what in ("stop", "load", "remove"):
            assert (await owner.post(f"{MODELS}/cluster/{what}", model="writer")).status_code == 404
        assert (await owner.post(f"{MODELS}/cluster/melt", model="writer")).status_code == 404
    for action in ("run", "stop", "load", "remove"):
        assert "model:writer" in audited(served, f"cluster.model.{action}")


async def test_a_run_that_fails_after_its_form_was_answered_is_shown_until_it_is_run_again(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_read, read = threading.Event(), ChatModel._read_model

    def read_later(*args: Any) -> Any:
        assert may_read.wait(PATIENCE_S)
        return read(*args)

    monkeypatch.setattr(ChatModel, "_read_model", read_later)
    monkeypatch.setattr("gateway.console.pages.models.cluster._PATIENCE_S", 0.1)
    async with visiting(served) as owner:
        done = await owner.post(f"{MODELS}/run", model="nowhere at all", name="lost")
        assert done.headers["location"] == f"{MODELS}#cluster-models"
        may_read.set()
        async with watching(served, owner, path=f"{MODELS}/live") as stream:
            await stream.until("Model not run: lost")
        assert "neither a folder" in (await owner.get(MODELS)).text
        monkeypatch.setattr("gateway.console.pages.models.cluster._PATIENCE_S", PATIENCE_S)
        await owner.post(
            f"{MODELS}/run", model=str(DEMO_MODEL), name="lost", kind="chat", idle_min="90", pin="true"
        )
        shown = (await owner.get(MODELS)).text
        assert "Model not run" not in shown
        again = html.unescape(re.findall(r'href="(/console/models/run\?replace=lost[^"]*)"', shown)[0])
        form = (await owner.get(again)).text
        assert re.search(r'name="pin"[^>]* checked', form)
        assert 'value="90.0"' in form
        await owner.post(f"{MODELS}/cluster/remove", model="lost")


def test_failed_runs_are_bounded_and_end() -> None:
    now_s = [0.0]
    failed = FailedRuns(lambda: now_s[0])
    for number in range(25):
        failed.add(f"model-{number}", "gone")
    assert [name for name, _ in failed.newest()] == [f"model-{number}" for number in range(24, 4, -1)]
    now_s[0] = 3600.0
    assert failed.newest() == []


@pytest.fixture(scope="module")
async def priced(tmp_path_factory: pytest.TempPathFactory, anyio_backend: str) -> AsyncIterator[Served]:
    """A gateway with a cloud model that has a price in the settings, and one that nobody knows one of."""
    folder = prepared(tmp_path_factory.mktemp("priced"))
    models = {
        "fast": CloudModel(model="openai/m", prompt_usd_per_mtok="1.00", completion_usd_per_mtok="2.00"),
        "odd": CloudModel(model="nobody/knows"),
    }
    settings = Settings(data_dir=folder.path, cloud=CloudSettings(models=models))
    async with open_services(settings, folder) as services:
        yield Served(services, create_app(services, Target("127.0.0.1", 1)))


async def test_a_price_is_set_on_the_models_page_and_taken_back(priced: Served) -> None:
    token = priced.services.keys.issue("anns", ("cloud",), user_id="ann").token
    async with visiting(priced) as owner, visiting(priced, "ann", token=token) as ann:
        shown = (await owner.get(f"{MODELS}/of", model="fast")).text
        assert "From the settings." in shown
        assert 'value="1.00"' in shown
        assert "No price known" in (await owner.get(f"{MODELS}/of", model="odd")).text
        bad = await owner.post(
            f"{MODELS}/price", model="fast", prompt_usd_per_mtok="cheap", completion_usd_per_mtok="7"
        )
        assert bad.status_code == 400
        assert re.findall(r'name="(\w+)"[^>]*aria-invalid', bad.text) == ["prompt_usd_per_mtok"]
        assert ('value="cheap"' in bad.text, 'value="7"' in bad.text) == (True, True)
        done = await owner.post(
            f"{MODELS}/price", model="fast", prompt_usd_per_mtok="0.5", completion_usd_per_mtok="7"
        )
        assert done.headers["location"] == f"{MODELS}/of?model=fast#price"
        shown = (await owner.get(f"{MODELS}/of", model="fast")).text
        assert "$0.50 / $7.00" in shown
        assert "Set by owner" in shown
        theirs = (await ann.get(f"{MODELS}/of", model="fast")).text
        assert ("$0.50 / $7.00" in theirs, "Set price" in theirs) == (True, False)
        for path in ("price", "price/remove", "alias", "alias/remove"):
            assert (await ann.post(f"{MODELS}/{path}", model="fast", alias="x")).status_code == 403
        assert (await owner.post(f"{MODELS}/price/remove", model="fast")).status_code == 303
        assert "$1.00 / $2.00" in (await owner.get(f"{MODELS}/of", model="fast")).text
        assert (await owner.post(f"{MODELS}/price/remove", model="fast")).status_code == 404
        unknown = await owner.post(
            f"{MODELS}/price", model="none", prompt_usd_per_mtok="1", completion_usd_per_mtok="1"
        )
        assert unknown.status_code == 404
    assert audited(priced, "price.set") == audited(priced, "price.remove") == ["model:fast"]


async def test_a_model_gets_another_name_and_loses_it(served: Served) -> None:
    server = servers.ollama()
    async with servers.running(server), visiting(served) as owner:
        await added(owner, server.base_url)
        bad = await owner.post(f"{MODELS}/alias", model=MODEL, alias="../up", models=f"{MODEL}, other")
        assert (bad.status_code, re.findall(r'name="(\w+)"[^>]*aria-invalid', bad.text)) == (400, ["alias"])
        assert f'value="{MODEL}, other"' in bad.text
        bad = await owner.post(f"{MODELS}/alias", model=MODEL, alias="mini", models=" , ")
        assert (bad.status_code, "Enter at least one value." in bad.text) == (400, True)
        assert (await owner.post(f"{MODELS}/alias", model=MODEL, alias="mini", models=MODEL)).status_code == 303
        assert "mini" in (await owner.get(f"{MODELS}/of", model=MODEL)).text
        alone = await owner.get(f"{MODELS}/of", model="mini")
        assert (alone.status_code, f'value="{MODEL}"' in alone.text) == (200, True)
        assert "/console/models/of?model=mini" in (await owner.get(MODELS)).text
        gone = await owner.post(f"{MODELS}/alias/remove", model="mini", alias="mini")
        assert gone.headers["location"] == MODELS
        assert (await owner.get(f"{MODELS}/of", model="mini")).status_code == 404
        assert (await owner.post(f"{MODELS}/alias/remove", model=MODEL, alias="mini")).status_code == 404
        assert (await owner.post(f"{MODELS}/alias/remove", model=MODEL)).status_code == 400
        await owner.post(f"{MODELS}/servers/desk/remove")
    assert audited(served, "alias.set") == audited(served, "alias.remove") == ["model:mini"]

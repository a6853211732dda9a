"""/admin/cluster/models: models that are run, stopped and removed while the gateway runs, and what is refused."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from cluster.chat_model import ChatModel
from cluster.control.topology import DeploymentState
from gateway.admin.cluster_model import idle_left_s, setting_of
from gateway.identity.audit import Filter
from gateway.settings.cluster import ClusterModel, ClusterSettings
from tests.clusters import DEMO_MODEL, PATIENCE_S
from tests.gateway.api.conftest import Serve, Served
from tests.gateway.http.edges import until

pytestmark = pytest.mark.anyio

PATH = "/admin/cluster/models"
DEMO = str(DEMO_MODEL)


async def run(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    """The last line of the answer."""
    answer = await client.post(PATH, json={"model": DEMO} | body)
    assert answer.status_code == 200, answer.text
    last: dict[str, Any] = json.loads(answer.text.splitlines()[-1])
    return last


async def refused(answer: httpx.Response) -> tuple[int, str | None, str]:
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["message"]


def audited(served: Served) -> list[tuple[str, str]]:
    entries = served.services.directory.audit.entries(Filter())
    return [(each.action, each.target) for each in reversed(entries) if each.action.startswith("cluster.model")]


async def test_a_model_is_run_listed_stopped_loaded_and_removed(serve: Serve) -> None:
    async with serve() as served, served.machine as machine:
        assert await run(machine, name="coder", idle_s=600, priority=70, pin=True) == {"model": "coder"}
        (shown,) = (await machine.get(PATH)).json()
        wanted = {"model": "coder", "source": DEMO_MODEL.name, "kind": "chat", "priority": 70, "idle_s": 600.0}
        wanted |= {"is_pinned": True, "machines": [], "running": 0, "idle_left_s": None, "setting": None}
        assert {name: shown[name] for name in wanted} == wanted
        assert (await machine.post(f"{PATH}/stop", json={"model": "coder"})).json() == {"stopped": "coder"}
        assert (await machine.get(PATH)).json()[0]["status"] == "unloaded"
        assert (await machine.post(f"{PATH}/load", json={"model": "coder"})).json() == {"model": "coder"}
        assert (await machine.delete(PATH, params={"model": "coder"})).json() == {"removed": "coder"}
        assert (await machine.get(PATH)).json() == []
        assert await run(machine, model=DEMO) == {"model": DEMO_MODEL.name}
        assert audited(served) == [
            (f"cluster.model.{action}", f"model:{name}")
            for action, name in (
                ("run", "coder"),
                ("stop", "coder"),
                ("load", "coder"),
                ("remove", "coder"),
                ("run", DEMO_MODEL.name),
            )
        ]
        (entry,) = served.services.directory.audit.entries(
            Filter(target="model:coder", action="cluster.model.run")
        )
        assert entry.after == {"reference": DEMO, "name": "coder", "idle_s": 600.0, "priority": 70, "pin": True}


async def test_refusals_name_the_field_and_the_remedy(serve: Serve, tmp_path: Path) -> None:
    async with serve() as served, served.machine as machine:
        await run(machine, name="coder")
        for body, status, field, words in (
            ({"name": "coder"}, 409, "name", "choose another name, or replace"),
            ({"name": "../up"}, 400, "name", "without `..`"),
            ({"model": "../up"}, 400, "model", "a name that can be shown"),
            ({"model": "~nobody-here/model"}, 400, "model", "Hugging Face id"),
            ({"model": "x" * 300}, 400, "model", "Hugging Face id"),
            ({"precision": "int2"}, 400, "precision", ""),
            ({"kind": "picture"}, 400, "kind", ""),
            ({"context_tokens": 3}, 400, "context_tokens", "64"),
            ({"priority": -1}, 400, "priority", ""),
            ({"idle_s": -1}, 400, "idle_s", ""),
            ({"replace": "other"}, 404, "replace", "millrace ps"),
            ({"replace": "coder", "name": "writer"}, 400, "name", "leave name out"),
            ({"colour": "red"}, 400, "colour", ""),
        ):
            answer = await refused(await machine.post(PATH, json={"model": DEMO} | body))
            assert (*answer[:2], words in answer[2]) == (status, field, True), (body, answer)
        for what in ("stop", "load"):
            unknown = await refused(await machine.post(f"{PATH}/{what}", json={"model": "other"}))
            assert (*unknown[:2], "millrace ps" in unknown[2]) == (404, "model", True)
        assert (await machine.delete(PATH, params={"model": "other"})).status_code == 404
        nowhere = await run(machine, model=str(tmp_path / "nowhere"))
        assert (nowhere["param"], "model: " in nowhere["error"]) == ("model", True)
        assert [each["model"] for each in (await machine.get(PATH)).json()] == ["coder"], "nothing is left of it"


async def test_a_name_that_a_folder_gives_is_refused_as_the_folder(serve: Serve) -> None:
    async with serve() as served, served.machine as machine:
        await run(machine)
        assert (await refused(await machine.post(PATH, json={"model": DEMO})))[:2] == (409, "model")


async def test_the_gateway_stays_ready_while_an_added_model_is_read(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_read, read = threading.Event(), ChatModel._read_model

    def read_later(*args: Any) -> Any:
        assert may_read.wait(PATIENCE_S)
        return read(*args)

    monkeypatch.setattr(ChatModel, "_read_model", read_later)
    async with serve() as served, served.machine as machine:
        running = asyncio.create_task(run(machine, name="coder"))
        try:
            await until(lambda: any(each.model_name for each in served.services.controller.chats))
            assert (await machine.get(PATH)).json()[0]["status"] == "planning"
            assert (await machine.get("/readyz")).status_code == 200
        finally:
            may_read.set()
        assert await running == {"model": "coder"}


async def test_only_operators_may_change_models(serve: Serve) -> None:
    async with serve() as served:
        served.services.directory.users.add("ann")
        async with served.bearer(served.key_of("ann")) as ann:
            for answer in (
                await ann.get(PATH),
                await ann.post(PATH, json={"model": DEMO}),
                await ann.post(f"{PATH}/stop", json={"model": "m"}),
                await ann.delete(PATH, params={"model": "m"}),
            ):
                assert answer.status_code == 403


def test_the_setting_that_names_a_model_is_known() -> None:
    settings = ClusterSettings(
        model=DEMO,
        served_name="first",
        embedding_model="acme/vectors",
        models=(ClusterModel(name="coder", model=DEMO),),
    )
    named = {name: setting_of(settings, name) for name in ("first", "acme/vectors", "coder", DEMO_MODEL.name)}
    assert named == {
        "first": "cluster.model",
        "acme/vectors": "cluster.embedding_model",
        "coder": "cluster.models",
        DEMO_MODEL.name: None,
    }


async def test_a_model_of_the_settings_cannot_be_removed(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.admin.cluster_model.setting_of", lambda *_: "cluster.models")
    async with serve() as served, served.machine as machine:
        await run(machine, name="coder")
        status, field, text = await refused(await machine.delete(PATH, params={"model": "coder"}))
        assert (status, field, "the setting cluster.models names coder" in text) == (409, "model", True)


def test_the_time_until_an_idle_model_is_unloaded() -> None:
    def state(**fields: Any) -> DeploymentState:
        known: dict[str, Any] = {"status": "ready", "reason": "", "epoch": 1}
        return DeploymentState("m", "m", "chat", **(known | fields))

    assert idle_left_s(state(idle_s=60, loaded_s=10)) == 50
    assert idle_left_s(state(idle_s=60, loaded_s=100, last_used_s=15)) == 45
    assert idle_left_s(state(idle_s=60, loaded_s=100)) == 0
    for stays in ({"idle_s": None}, {"is_pinned": True}, {"running": 1}, {"waiting": 1}, {"status": "unloaded"}):
        assert idle_left_s(state(**{"idle_s": 60, "loaded_s": 10} | stays)) is None

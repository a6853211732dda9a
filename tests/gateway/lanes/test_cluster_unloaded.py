"""A model of the cluster that is not loaded: callers see it, a request loads it, and a stream tells that it waits."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cluster.control.specs import DeploymentSpec
from cluster.fleet import supervisor_of
from gateway.dialects.model_loading import Upkeep
from gateway.dialects.openai import read_request
from gateway.errors import FeatureUnsupported, LaneBusy
from gateway.lanes.base import Call
from gateway.lanes.cluster.lane import ClusterLane
from gateway.lanes.cluster.residence import reside
from gateway.settings import RoutingSettings
from tests.clusters import DEMO_MODEL, PATIENCE_S, Cluster, running_cluster
from tests.fakes import pool_servers as servers
from tests.gateway.http.edges import until
from tests.gateway.lanes.collected import Collected
from tests.gateway.requests.roads import nothing_is_left, receive, road, send

pytestmark = pytest.mark.anyio

ASKED = [{"role": "user", "content": "Once upon a time"}]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path_factory.mktemp("cluster"), nodes=1) as cluster:
        await cluster.controller.run_model(DeploymentSpec("coder", str(DEMO_MODEL), precision="fp32"))
        yield cluster


def call(**fields: Any) -> Call:
    raw = json.dumps({"model": "coder", "messages": ASKED, "temperature": 0, "max_tokens": 8} | fields).encode()
    return Call("test", "chat", read_request("chat", raw), raw)


async def ask(lane: ClusterLane, **fields: Any) -> bytes:
    asked, out = call(**fields), Collected()
    (offer,) = lane.offers("coder")
    answer = await lane.open(asked, offer)
    await answer.body.send(out)
    assert answer.meter.completion_tokens == 8
    return out.content


async def test_a_stopped_model_is_offered_and_the_next_request_loads_it(cluster: Cluster) -> None:
    lane = ClusterLane(cluster.controller, 8, patience_s=PATIENCE_S)
    whole = json.loads(await ask(lane))["choices"][0]["message"]["content"]
    (offer,) = lane.offers("coder")
    assert (offer.state, offer.is_resident, offer.load_s, offer.note) == ("ready", True, 0, "")
    await cluster.controller.stop_model("coder")
    assert "coder" in lane.models()
    (offer,) = lane.offers("coder")
    assert (offer.state, offer.is_resident, offer.weights, offer.note) == ("ready", False, "", "it was stopped")
    assert 0 < offer.load_s < PATIENCE_S, "as long as the last load took"
    assert json.loads(await ask(lane))["choices"][0]["message"]["content"] == whole
    assert lane.offers("coder")[0].is_resident


async def test_a_stream_has_comments_until_its_model_is_loaded(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.lanes.cluster.comments.SILENCE_S", 0.02)
    lane = ClusterLane(cluster.controller, 8, patience_s=PATIENCE_S)
    await cluster.controller.stop_model("coder")
    events = (await ask(lane, stream=True)).decode().strip().split("\n\n")
    comments = [event for event in events if event == ": loading"]
    assert comments == events[: len(comments)] != []
    assert (events[len(comments)].startswith("data: {"), events[-1]) == (True, "data: [DONE]")
    assert not any(event.startswith(":") for event in (await ask(lane, stream=True)).decode().split("\n\n"))


async def test_a_caller_who_leaves_while_a_model_is_loaded_leaves_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.lanes.cluster.comments.SILENCE_S", 0.02)
    lane = ClusterLane(cluster.controller, 8, patience_s=PATIENCE_S)
    await cluster.controller.stop_model("coder")
    answer = await lane.open(call(stream=True), lane.offers("coder")[0])
    (chat,) = [each for each in cluster.controller.chats if each.model_name == "coder"]
    assert chat.manager.gate.waiting == 1
    await answer.body.close()
    assert (chat.manager.gate.waiting, chat.manager.gate.running) == (0, 0)


async def test_a_model_that_is_being_replaced_is_busy_for_ollamas_clients(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane, fleet = ClusterLane(cluster.controller, 8), cluster.controller._fleet
    monkeypatch.setattr(fleet, "_replaced", {supervisor_of(fleet.find("coder"))})
    with pytest.raises(LaneBusy, match="is being replaced"):
        await reside(cluster.controller, lane.offers("coder")[0], Upkeep("unload", "coder", b"", {}), 1.0)


async def test_a_request_with_a_deadline_gets_a_status_and_no_comments(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.lanes.cluster.comments.SILENCE_S", 0.0)
    lane = ClusterLane(cluster.controller, 8, patience_s=0.01)
    await cluster.controller.stop_model("coder")
    with pytest.raises(LaneBusy):
        await lane.open(call(stream=True, millrace={"deadline_s": 5}), lane.offers("coder")[0])


async def test_a_load_that_fails_ends_a_begun_stream_with_an_error_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.lanes.cluster.comments.SILENCE_S", 0.1)
    async with road(tmp_path, routing=RoutingSettings(queue_s=1.0)) as running:
        services = running.services
        await services.controller.run_model(DeploymentSpec("coder", str(DEMO_MODEL)))
        key = services.keys.create("own", ("cluster",))
        asked = await send(running, key, model="coder", stream=True)
        await until(lambda: services.health.of("cluster").in_flight == 1)
        answered = await receive(asked, within_s=30)
        assert (answered.status, answered.headers["content-type"]) == (200, "text/event-stream")
        assert (answered.headers["x-millrace-lane"], answered.content.startswith(b": loading\n\n")) == (
            "cluster",
            True,
        )
        assert answered.error["code"] == "cluster_unavailable"
        assert answered.events == [answered.events[-1]], "no [DONE] follows"
        reader, writer = await running.connect()
        body = json.dumps({"model": "coder", "messages": ASKED, "max_tokens": 8, "stream": True}).encode()
        raw = running.request(body, b"connection: close\r\n", b"/v1/messages")
        writer.write(raw.replace(running.key.encode(), key.encode()))
        answered = await receive((reader, writer), within_s=30)
        assert (answered.status, answered.content.startswith(b": loading\n\n")) == (200, True)
        assert b"event: error" in answered.content
        refused = await receive(await send(running, key, model="coder"), within_s=30)
        assert (refused.status, refused.error["code"]) == (503, "cluster_unavailable")
        await nothing_is_left(running)
        health = services.health.of("cluster")
        assert health.breakers.of("coder").failures_in_row == 0, "a model that waits for memory is not broken"


async def test_a_feature_that_a_loaded_model_lacks_is_an_error_event_after_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lacks(*_: Any) -> None:
        await asyncio.sleep(0.3)
        raise FeatureUnsupported("'coder' does not support tools", param="tools")

    monkeypatch.setattr("gateway.lanes.cluster.comments.SILENCE_S", 0.1)
    monkeypatch.setattr(ClusterLane, "_open", lacks)
    async with road(tmp_path) as running:
        services = running.services
        await services.controller.run_model(DeploymentSpec("coder", str(DEMO_MODEL)))
        asked = await send(running, services.keys.create("own", ("cluster",)), model="coder", stream=True)
        answered = await receive(asked, within_s=30)
        assert (answered.status, answered.content.startswith(b": loading\n\n")) == (200, True)
        assert (answered.error["param"], answered.events) == ("tools", [answered.events[-1]])
        await nothing_is_left(running)
        log, request_id = services.request_log, answered.headers["x-request-id"]
        await until(lambda: log.find(request_id) is not None)
        entry = log.find(request_id)
        assert entry
        assert (entry.outcome, entry.charge_nano) == ("failed", 0)


async def test_a_loaded_copy_elsewhere_is_preferred_to_an_unloaded_model(tmp_path: Path) -> None:
    async with (
        servers.running(servers.ollama()) as server,
        road(tmp_path, server.base_url, backend={"kind": "ollama", "models": ()}) as running,
    ):
        services = running.services
        await services.controller.run_model(DeploymentSpec("llava:latest", str(DEMO_MODEL)))
        caller = services.keys.find(services.keys.create("own", ("cluster", "pool")))
        assert caller
        found = services.router.explain(caller, call(model="llava:latest"))
        assert [each.offer.lane for each in found.candidates] == ["pool", "cluster"]
        assert [each.predicted.load_s > 0 for each in found.candidates] == [False, True]
        assert "loading the model" in found.candidates[1].reason

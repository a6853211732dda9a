"""How long a request that the cluster alone may answer waits for its ring."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from cluster.chat_model import ChatModel
from cluster.control.readiness import Status
from cluster.models.chat_format import ChatFormat
from gateway.settings import RoutingSettings
from tests.clusters import DEMO_MODEL, PATIENCE_S
from tests.gateway.http.edges import until
from tests.gateway.requests.roads import nothing_is_left, receive, road, send

pytestmark = pytest.mark.anyio


async def test_it_waits_as_long_as_its_patience_is(tmp_path: Path) -> None:
    async with road(tmp_path, routing=RoutingSettings(queue_s=0.5)) as running:
        services = running.services
        await services.controller.start("127.0.0.1", 0)
        await services.controller.chat.load_model(str(DEMO_MODEL))
        services.controller.absences.note("node-1", "ended (killed by signal 9); it is started again after 60 s")
        key = services.keys.create("own", ("cluster",))
        for request in ({"model": DEMO_MODEL.name}, {"model": DEMO_MODEL.name, "stream": True}):
            refused = await receive(await send(running, key, **request), within_s=30)
            assert (refused.status, refused.error["code"]) == (503, "cluster_unavailable")
            assert "node-1 ended (killed by signal 9)" in refused.error["message"]
        await nothing_is_left(running)


@pytest.mark.parametrize("status", ["ready", "failed"])
async def test_a_request_with_tools_waits_until_the_model_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: Status
) -> None:
    """A gateway that starts knows the model's name before it knows what the model can do."""
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    is_read, read = threading.Event(), ChatModel._read_model

    def read_later(*args: Any) -> Any:
        assert is_read.wait(PATIENCE_S)
        return read(*args)

    monkeypatch.setattr(ChatModel, "_read_model", read_later)
    monkeypatch.setattr(ChatModel, "chat_format", property(lambda _: ChatFormat()))  # it has no tools
    async with road(tmp_path, routing=RoutingSettings(queue_s=30)) as running:
        services = running.services
        reading = asyncio.create_task(services.controller.chat.load_model(str(DEMO_MODEL)))
        await until(lambda: services.lanes["cluster"].models() == [DEMO_MODEL.name])
        key = services.keys.create("own", ("cluster",))
        asked = await send(running, key, model=DEMO_MODEL.name, tools=[tool])
        await until(lambda: services.health.of("cluster").in_flight == 1)
        is_read.set()
        await reading
        await services.controller.chat.manager.readiness.tell(status, "as the test has it")
        refused = await receive(asked)
        expected = (400, "unsupported_feature") if status == "ready" else (503, "cluster_unavailable")
        assert (refused.status, refused.error["code"]) == expected, refused.content
        await nothing_is_left(running)

"""How long a request that the cluster alone may answer waits for its ring."""

from pathlib import Path

import pytest

from gateway.settings import RoutingSettings
from tests.clusters import DEMO_MODEL
from tests.gateway.journey.roads import nothing_is_left, receive, road, send

pytestmark = pytest.mark.anyio


async def test_it_waits_as_long_as_its_patience_is(tmp_path: Path) -> None:
    async with road(tmp_path, routing=RoutingSettings(queue_s=0.5)) as running:
        services = running.services
        await services.controller.load_model(str(DEMO_MODEL))
        services.controller.absences.note("node-1", "ended (killed by signal 9); it is started again after 60 s")
        key = services.keys.create("own", ("cluster",))
        for request in ({"model": DEMO_MODEL.name}, {"model": DEMO_MODEL.name, "stream": True}):
            refused = await receive(await send(running, key, **request), within_s=30)
            assert (refused.status, refused.error["code"]) == (503, "cluster_unavailable")
            assert "node-1 ended (killed by signal 9)" in refused.error["message"]
        await nothing_is_left(running)

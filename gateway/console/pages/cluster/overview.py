"""The cluster as it is now: picture, plan, machines, links, events."""

from typing import Any

from fastapi import APIRouter, Response

from gateway.admin import machines
from gateway.console.access import Operator
from gateway.console.figures.machines import link_matrix
from gateway.console.forms import pressed
from gateway.console.live import live_parts
from gateway.console.pages.cluster.state import PICTURE_PARTS, cluster_state
from gateway.console.renderer import go, page
from gateway.services import Services

_EVENTS_SHOWN = 50
_PARTS = PICTURE_PARTS | {
    f"cluster-{part}": f"cluster/{part}.html"
    for part in ("lead", "figures", "plan", "models", "machines", "links", "events")
}

router = APIRouter(prefix="/console/cluster")


@router.get("")
async def overview(visitor: Operator) -> Response:
    return page("cluster/page.html", visitor, **await _values(visitor.services))


@router.get("/live")
async def live(visitor: Operator) -> Response:
    return await live_parts(visitor, "cluster", 2.0, _PARTS, lambda: _values(visitor.services))


@router.post("/links")
async def measure_links(visitor: Operator) -> Response:
    await pressed(visitor)
    await machines.measure_links(visitor.authority)
    return go(visitor, "/console/cluster#links", "Measuring all links. Results appear as they arrive.")


async def _values(services: Services) -> dict[str, Any]:
    state = cluster_state(services)
    return {
        "topology": state.topology,
        "cluster": state.cluster,
        "machines": state.machines,
        "names": {member.node_id: member.name for member in state.topology.members},
        "links": link_matrix(state.topology),
        "events": services.controller.events()[:_EVENTS_SHOWN],
    }

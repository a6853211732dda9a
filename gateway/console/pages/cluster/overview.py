"""The cluster as it is now: picture, plan, machines, links, events."""

from typing import Any

from fastapi import APIRouter, Response

from gateway.admin import machines
from gateway.app_state import Controller
from gateway.console.access import Operator
from gateway.console.figures.machines import link_matrix
from gateway.console.forms import pressed
from gateway.console.live import live_parts
from gateway.console.pages.cluster.state import PICTURE_PARTS, cluster_state
from gateway.console.renderer import go, page

_EVENTS_SHOWN = 50
_PARTS = PICTURE_PARTS | {
    f"cluster-{part}": f"cluster/{part}.html"
    for part in ("lead", "figures", "plan", "models", "machines", "links", "events")
}

router = APIRouter(prefix="/console/cluster")


@router.get("")
async def overview(visitor: Operator, controller: Controller) -> Response:
    return page("cluster/page.html", visitor, **await _values(controller))


@router.get("/live")
async def live(visitor: Operator, controller: Controller) -> Response:
    return await live_parts(visitor, "cluster", 2.0, _PARTS, lambda: _values(controller))


@router.post("/links")
async def measure_links(visitor: Operator, controller: Controller) -> Response:
    await pressed(visitor)
    await machines.measure_links(visitor.authority, controller)
    return go(visitor, "/console/cluster#links", "Measuring all links. Results appear as they arrive.")


async def _values(controller: Controller) -> dict[str, Any]:
    state = cluster_state(controller)
    return {
        "topology": state.topology,
        "cluster": state.cluster,
        "machines": state.machines,
        "names": {member.node_id: member.name for member in state.topology.members},
        "links": link_matrix(state.topology),
        "events": controller.events()[:_EVENTS_SHOWN],
    }

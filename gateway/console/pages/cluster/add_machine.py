"""Adding a machine: a single-use command, the machine as it joins, and the link to the plan preview."""

import time
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from cluster.trust.addresses import is_reachable
from cluster.trust.authority import TOKEN_TTL_S
from gateway.admin import machines
from gateway.admin.join_command import join_command
from gateway.app_state import ClusterTarget, Controller
from gateway.console.access import Operator
from gateway.console.figures.machines import link_matrix
from gateway.console.forms import pressed
from gateway.console.live import LivePage, Points, Region, live_response
from gateway.console.pages.cluster.state import cluster_state
from gateway.console.renderer import page

_NS_PER_S = 10**9

router = APIRouter(prefix="/console/cluster/add")


@router.get("")
async def ask(visitor: Operator, cluster: ClusterTarget) -> Response:
    return page(
        "cluster/add.html", visitor, command="", is_reachable=is_reachable(cluster.host), port=cluster.port
    )


@router.post("")
async def make_command(visitor: Operator, controller: Controller, cluster: ClusterTarget) -> Response:
    """Create the command. The machine joins drained: no plan uses it before an admin has seen the preview."""
    await pressed(visitor)
    since_ns = time.time_ns()
    made = await machines.create_token(visitor.authority, controller, cluster, aside=True)
    return page(
        "cluster/add.html",
        visitor,
        command=join_command(cluster, made["token"]),
        is_reachable=is_reachable(cluster.host),
        port=cluster.port,
        fingerprint=made["fingerprint"],
        until_ns=since_ns + int(TOKEN_TTL_S) * _NS_PER_S,
        since_ns=since_ns,
        **_newcomers(controller, since_ns),
    )


@router.get("/live")
async def live(
    visitor: Operator, controller: Controller, since_ns: Annotated[int, Query(ge=0, lt=2**63)]
) -> Response:
    async def render() -> list[Region | Points]:
        return [Region("newcomers", "cluster/newcomers.html", _newcomers(controller, since_ns))]

    return await live_response(visitor, LivePage(f"cluster:add:{since_ns}", render, 1.0))


def _newcomers(controller: Controller, since_ns: int) -> dict[str, Any]:
    """Return machines that joined since then, with their links to the others."""
    state = cluster_state(controller)
    links = {row.node_id: row for row in link_matrix(state.topology)}
    names = [member.name for member in state.topology.members]
    rows = [row for row in state.machines if row.joined_ns >= since_ns and not row.removed_ns]
    return {
        "newcomers": [
            (row, _measured(links[row.node_id].cells, names) if row.node_id in links else []) for row in rows
        ],
        "has_model": controller.chat.model is not None,
        "others": len(names) - sum(row.is_here for row in rows),
    }


def _measured(cells: tuple[Any, ...], names: list[str]) -> list[tuple[str, Any]]:
    return [(name, cell) for name, cell in zip(names, cells, strict=True) if cell.link]

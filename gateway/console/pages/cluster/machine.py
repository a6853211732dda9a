"""One machine: what it has and does, how its links are, and what can be done with it."""

from fastapi import APIRouter, Request, Response

from gateway.api import admin
from gateway.console.access import Operator
from gateway.console.figures.machines import MachineRow, link_matrix
from gateway.console.pages.cluster.asking import machine_of
from gateway.console.pages.cluster.state import cluster_state
from gateway.console.rendering import go, page

router = APIRouter(prefix="/console/cluster/machines/{node_id}")


@router.get("")
async def show(visitor: Operator, node_id: str) -> Response:
    state = cluster_state(visitor.services)
    row = state.row(node_id)
    names = [member.name for member in state.topology.members]
    own = next((link_row for link_row in link_matrix(state.topology) if link_row.node_id == row.node_id), None)
    links = [(name, cell) for name, cell in zip(names, own.cells, strict=True) if not cell.is_self] if own else []
    has_model = visitor.services.controller.model is not None
    return page("cluster/machine.html", visitor, row=row, links=links, has_model=has_model)


@router.post("/drain")
async def drain(request: Request, visitor: Operator, node_id: str) -> Response:
    row = await machine_of(request, visitor, node_id)
    await admin.drain_machine(visitor.authority, row.node_id)
    return go(visitor, _path(row), f"{row.name} is drained: its work moves elsewhere.")


@router.post("/undrain")
async def undrain(request: Request, visitor: Operator, node_id: str) -> Response:
    row = await machine_of(request, visitor, node_id)
    await admin.drain_machine(visitor.authority, row.node_id, undo=True)
    return go(visitor, _path(row), f"{row.name} takes part again.")


@router.post("/remove")
async def remove(request: Request, visitor: Operator, node_id: str) -> Response:
    row = await machine_of(request, visitor, node_id)
    await admin.remove_machine(visitor.authority, row.node_id)
    return go(visitor, "/console/cluster", f"{row.name} is out; its work goes on elsewhere.")


def _path(row: MachineRow) -> str:
    return f"/console/cluster/machines/{row.node_id}"

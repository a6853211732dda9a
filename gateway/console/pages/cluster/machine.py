"""One machine: its hardware and role, its links, and actions on it."""

from typing import Any

from fastapi import APIRouter, Response

from gateway.admin import machines
from gateway.admin.machines import NewName
from gateway.app_state import Controller, Settings
from gateway.console.access import Operator, Visitor
from gateway.console.figures.machines import MachineRow, link_matrix
from gateway.console.forms import Form, pressed, submit_form
from gateway.console.pages.cluster.state import cluster_state
from gateway.console.renderer import go, page
from runtime.errors import NotFound

router = APIRouter(prefix="/console/cluster/machines/{node_id}")


@router.get("")
async def show(visitor: Operator, controller: Controller, node_id: str) -> Response:
    return _page(visitor, controller, node_id)


@router.post("/rename")
async def rename(visitor: Operator, controller: Controller, settings: Settings, node_id: str) -> Response:
    """Set the display name, whatever name the machine reports. Raises NotFound for a removed machine."""
    row = cluster_state(controller).row(node_id)
    if row.removed_ns:
        # The page of a removed machine has no form that could show a refusal.
        raise NotFound(f"Machine {row.name} not found: it was removed.")
    owners = settings.cluster.owners
    done, form = await submit_form(
        visitor,
        NewName,
        lambda new: machines.rename_machine(visitor.authority, controller, owners, row.node_id, new.name),
    )
    if done is None:
        return _page(visitor, controller, node_id, form, 400)
    return go(visitor, _path(row), f"{done['from']} renamed to {done['to']}.")


def _page(
    visitor: Visitor, controller: Controller, node_id: str, form: Form[Any] | None = None, status: int = 200
) -> Response:
    state = cluster_state(controller)
    row = state.row(node_id)
    names = [member.name for member in state.topology.members]
    own = next((link_row for link_row in link_matrix(state.topology) if link_row.node_id == row.node_id), None)
    links = [(name, cell) for name, cell in zip(names, own.cells, strict=True) if not cell.is_self] if own else []
    has_model = controller.chat.model is not None
    form = form or Form.showing(name=row.name)
    return page("cluster/machine.html", visitor, status, row=row, links=links, has_model=has_model, form=form)


@router.post("/drain")
async def drain(visitor: Operator, controller: Controller, node_id: str) -> Response:
    row = await _machine_of(visitor, controller, node_id)
    await machines.drain_machine(visitor.authority, controller, row.node_id)
    return go(visitor, _path(row), f"{row.name} is draining; its work moves to other machines.")


@router.post("/undrain")
async def undrain(visitor: Operator, controller: Controller, node_id: str) -> Response:
    row = await _machine_of(visitor, controller, node_id)
    await machines.drain_machine(visitor.authority, controller, row.node_id, undo=True)
    return go(visitor, _path(row), f"{row.name} is enabled.")


@router.post("/remove")
async def remove(visitor: Operator, controller: Controller, node_id: str) -> Response:
    row = await _machine_of(visitor, controller, node_id)
    await machines.remove_machine(visitor.authority, controller, row.node_id)
    return go(visitor, "/console/cluster", f"{row.name} was removed; its work continues on other machines.")


async def _machine_of(visitor: Visitor, controller: Controller, node_id: str) -> MachineRow:
    """Return the machine that a button acts on. Raises NotFound, and the errors of `pressed`."""
    await pressed(visitor)
    return cluster_state(controller).row(node_id)


def _path(row: MachineRow) -> str:
    return f"/console/cluster/machines/{row.node_id}"

"""Preview of the plan if machines left or joined, beside the current plan; and applying it."""

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, Field

from cluster.control.deployment import Model
from cluster.control.topology import Topology
from cluster.errors import ModelNotFound
from cluster.plans.plan import Plan
from cluster.trust.identity import NodeId
from gateway.admin import machines
from gateway.app_state import Controller
from gateway.console.access import Operator, Visitor
from gateway.console.figures.layout import Sketch, sketch
from gateway.console.forms import read_form
from gateway.console.pages.cluster.state import ClusterState, cluster_state
from gateway.console.renderer import go, page

_MACHINES_MAX = 256

router = APIRouter(prefix="/console/cluster/plan")

Ids = Annotated[tuple[Annotated[str, Field(max_length=64)], ...], Field(max_length=_MACHINES_MAX)]


class Change(BaseModel):
    """Machines to drain, and drained ones to include."""

    without: Ids = ()
    including: Ids = ()


@router.get("")
async def draft(
    visitor: Operator,
    controller: Controller,
    without: Annotated[Ids, Query()] = (),
    including: Annotated[Ids, Query()] = (),
) -> Response:
    return await _show(visitor, controller, Change(without=without, including=including))


@router.post("")
async def apply(visitor: Operator, controller: Controller) -> Response:
    """Drain and include machines as shown; the controller then replans automatically.

    Raises NotFound, RequestInvalid.
    """
    fields = (await read_form(visitor, Change)).whole()
    state = cluster_state(controller)
    rows = [(state.row(node_id), False) for node_id in fields.without]
    rows += [(state.row(node_id), True) for node_id in fields.including]
    for row, undo in rows:
        await machines.drain_machine(visitor.authority, controller, row.node_id, undo=undo)
    message = " and ".join(f"{row.name} {'joins' if undo else 'is drained'}" for row, undo in rows)
    return go(
        visitor,
        "/console/cluster",
        f"{message}: the new pipeline is prepared while the old one serves." if message else "",
    )


async def _show(visitor: Visitor, controller: Controller, change: Change) -> Response:
    state = cluster_state(controller)
    values: dict[str, Any] = {
        "machines": [row for row in state.machines if row.is_here],
        "change": change,
        "names_out": [state.row(node_id).name for node_id in change.without],
        "names_in": [state.row(node_id).name for node_id in change.including],
        "now": None,
        "then": None,
        "lines": (),
        "problem": "",
    }
    try:
        drafted = await machines.draft_plan(controller, change.without, change.including)
    except ModelNotFound:
        values["problem"] = "No model is loaded yet."
    else:
        values |= {"now": drafted.now, "then": drafted.then, "lines": drafted.change}
        values |= {
            "drawn_now": state.cluster,
            "drawn_then": _drawn(controller.chat.model, state, drafted.then, change),
        }
    return page("cluster/draft.html", visitor, **values)


def _drawn(model: Model | None, state: ClusterState, plan: Plan | None, change: Change) -> Sketch | None:
    """Draw the cluster with that plan."""
    if plan is None or model is None:
        return None
    known: Topology = state.topology
    coordinator = plan.stages[0].member.node_id
    draining = (known.draining - set(change.including)) | {NodeId(node_id) for node_id in change.without}
    then = replace(known, plan=plan, coordinator=coordinator, standbys=plan.standbys, draining=draining)
    return sketch(then, model.card)

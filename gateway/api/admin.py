"""/admin: routes for the command line and admins; this module: machines, join tokens, requests."""

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query
from msgspec import structs, to_builtins
from pydantic import BaseModel, ConfigDict, Field

from cluster.control.topology import DeploymentState, Topology
from cluster.errors import ModelNotFound
from cluster.plans.plan import Plan, PlannedStage
from cluster.trust.identity import NodeId
from gateway.admin import machines
from gateway.admin.machines import NewName
from gateway.api import directory, market, model_terms, pauses
from gateway.api.authority import HEADER, Operator
from gateway.app_state import ClusterTarget, Controller, RequestLog, Settings
from gateway.billing.request_log import ROWS_MAX
from gateway.parameters import Named
from runtime.errors import NotFound

__all__ = ["HEADER", "router"]


class PlanQuestion(BaseModel):
    """Machines, by name or id: `without` excludes them from the plan, and drained ones may be included."""

    model_config = ConfigDict(extra="forbid")
    without: list[str] = Field(default=[], max_length=256)
    including: list[str] = Field(default=[], max_length=256)


Limit = Annotated[int, Query(ge=1, le=ROWS_MAX)]

router = APIRouter(prefix="/admin")
for part in (directory, pauses, model_terms, market):
    router.include_router(part.router)


@router.post("/tokens")
async def create_token(
    authority: Operator, controller: Controller, cluster: ClusterTarget, aside: bool = False
) -> dict[str, Any]:
    """Create a join token for one machine, with the cluster's address; with `aside` the machine joins drained."""
    return await machines.create_token(authority, controller, cluster, aside=aside)


@router.post("/links/measure")
async def measure_links(authority: Operator, controller: Controller) -> dict[str, Any]:
    """Measure every link between machines again, a few at a time, and stream the results."""
    return {"machines": await machines.measure_links(authority, controller)}


@router.get("/cluster/events")
async def list_events(_: Operator, controller: Controller) -> list[dict[str, Any]]:
    """List events of the cluster since the gateway's start, newest first; times are seconds since 1970."""
    return [asdict(event) for event in controller.events()]


@router.get("/cluster")
async def show_cluster(_: Operator, controller: Controller) -> dict[str, Any]:
    """Show the cluster's machines, layers, links and plan."""
    return describe(controller.topology())


@router.get("/machines")
async def list_machines(_: Operator, controller: Controller) -> list[dict[str, Any]]:
    """List every admitted machine; times are seconds since 1970, `removed_s` is 0 if it is not removed."""
    return [
        {"node": state.record.name, "node_id": state.node_id, "present": state.present} | to_builtins(state.record)
        for state in controller.machines()
    ]


@router.post("/machines/{name}/remove")
async def remove_machine(authority: Operator, controller: Controller, name: Named) -> dict[str, Any]:
    """Remove a machine at once; its work continues elsewhere."""
    return {"removed": await machines.remove_machine(authority, controller, name)}


@router.post("/machines/{name}/drain")
async def drain_machine(
    authority: Operator, controller: Controller, name: Named, undo: bool = False
) -> dict[str, Any]:
    """Drain a machine; with `undo` enable it again."""
    return {"drained": await machines.drain_machine(authority, controller, name, undo=undo), "undo": undo}


@router.post("/machines/{name}/rename")
async def rename_machine(
    authority: Operator, controller: Controller, settings: Settings, name: Named, body: NewName
) -> dict[str, Any]:
    """Rename a machine wherever it is shown, until its own name is restored."""
    return await machines.rename_machine(authority, controller, settings.cluster.owners, name, body.name)


@router.post("/plan")
async def draft_plan(_: Operator, controller: Controller, question: PlanQuestion) -> dict[str, Any]:
    """Preview a new plan beside the current one. Nothing changes.

    Raises NotFound if a named machine or the model is not there.
    """
    try:
        draft = await machines.draft_plan(controller, question.without, question.including)
    except ModelNotFound as error:
        raise NotFound(str(error)) from None
    return {"now": _plan(draft.now), "then": _plan(draft.then), "change": list(draft.change)}


@router.get("/requests")
async def list_requests(_: Operator, log: RequestLog, limit: Limit = 50) -> list[dict[str, Any]]:
    """List recent requests, newest first."""
    entries = await asyncio.to_thread(log.newest, limit)
    return [structs.asdict(entry) for entry in entries]


def describe(topology: Topology) -> dict[str, Any]:
    """Return the cluster as JSON: nodes with their layers, and the reasons for the placement."""
    stages = topology.plan.stages if topology.plan else ()
    by_node = {stage.member.node_id: stage for stage in stages}
    nodes = []
    # In pipeline order, spares last.
    for member in sorted(topology.members, key=lambda m: _place(by_node, m.node_id)):
        stage = by_node.get(member.node_id)
        nodes.append(
            {
                "node": member.name,
                "node_id": member.node_id,
                "device": member.machine.device.kind,
                "memory_usable_bytes": member.machine.memory_usable_bytes,
                "layers": [stage.spec.first_layer, stage.spec.end_layer - 1] if stage else None,
                "weight_bytes": stage.weight_bytes if stage else 0,
                "coordinator": member.node_id == topology.coordinator,
                "reason": stage.reason if stage else "spare",
                "warnings": to_builtins(topology.warnings.get(member.node_id, ())),
            }
        )
    return {
        "status": topology.status,
        "reason": topology.reason,
        "epoch": topology.epoch,
        "model": topology.model,
        "model_source": topology.model_source,
        "precision": topology.plan.precision if topology.plan else None,
        "context_tokens": topology.plan.context_tokens if topology.plan else None,
        "predicted": to_builtins(topology.plan.predicted) if topology.plan else None,
        "ring_round_trip_ms": topology.round_trip_ms,
        "plan": list(topology.plan.reasons) if topology.plan else [],
        "nodes": nodes,
        "deployments": [_deployment(state, topology) for state in topology.deployments],
        "links": _links(topology),
        "absent": dict(topology.absences),
    }


def _deployment(state: DeploymentState, topology: Topology) -> dict[str, Any]:
    """Return one model's state, with the names of the machines that hold it."""
    names = {member.node_id: member.name for member in topology.members}
    return asdict(state) | {"machines": [names.get(node_id, node_id) for node_id in state.machines]}


def _links(topology: Topology) -> list[dict[str, Any]]:
    """Return the last measurement of every link between present machines, one for each direction."""
    names = {member.node_id: member.name for member in topology.members}
    return [
        {
            "from": names[sender],
            "to": names[receiver],
            "delay_ms": round(link.delay_s * 1000, 3),
            "jitter_ms": round(link.jitter_s * 1000, 3),
            "mbit_per_s": round(link.bytes_per_s * 8 / 1e6, 1),
            "mtu_bytes": link.mtu_bytes,
        }
        for (sender, receiver), link in sorted(topology.network.links.items())
        if sender in names and receiver in names
    ]


def _plan(plan: Plan | None) -> dict[str, Any] | None:
    if plan is None:
        return None
    return {
        "precision": plan.precision,
        "context_tokens": plan.context_tokens,
        "stages": [
            {"node": s.member.name, "layers": [s.spec.first_layer, s.spec.end_layer - 1], "reason": s.reason}
            for s in plan.stages
        ],
        "reasons": list(plan.reasons),
        "predicted": to_builtins(plan.predicted),
    }


def _place(stages: dict[NodeId, PlannedStage], node_id: NodeId) -> tuple[int, str]:
    stage = stages.get(node_id)
    return (stage.spec.index if stage else len(stages), node_id)

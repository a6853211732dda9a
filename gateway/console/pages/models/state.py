"""Data for the pages of the models, as far as the visitor may see it."""

from dataclasses import dataclass, replace

from gateway.admin.catalogue import catalogue
from gateway.console.access import Visitor
from gateway.console.figures.models import ModelRow, model_rows
from gateway.identity.caller import Caller
from gateway.lanes.pool.backend import Backend
from gateway.lanes.pool.lane import PoolLane
from gateway.lanes.pool.members import Pool
from gateway.lanes.pool.residence import can_be_told
from gateway.services import Services


@dataclass(frozen=True, slots=True)
class ClusterModel:
    """The model that local machines hold together; sizes at the precision in use."""

    name: str
    family: str
    layers: int
    precision: str | None
    context_tokens: int | None
    weights_bytes: int | None
    stored_bytes: int
    digest: str
    status: str
    reason: str


def rows_of(visitor: Visitor) -> list[ModelRow]:
    """Return all models for operators, whatever their key allows; for others those that their key allows."""
    services = visitor.services
    pool = pool_of(services)
    loadable: set[str] = set()
    if pool is not None and visitor.is_operator:
        loadable = {name for name in pool.models() if any(can_be_told(pool, offer) for offer in pool.offers(name))}
    return model_rows(catalogue(services.lanes, caller_of(visitor)), loadable)


def caller_of(visitor: Visitor) -> Caller:
    """Return the caller; for operators without the limits of the key that they signed in with."""
    if not visitor.is_operator:
        return visitor.caller
    return replace(visitor.caller, lanes=frozenset(visitor.services.lanes), models=None)


def pool_of(services: Services) -> Pool | None:
    lane = services.lanes.get("pool")
    return lane.pool if isinstance(lane, PoolLane) else None


def backends_of(services: Services) -> list[Backend]:
    pool = pool_of(services)
    return pool.backends() if pool else []


def cluster_model(services: Services) -> ClusterModel | None:
    """Return the cluster's model, or None before the cluster has read one."""
    controller = services.controller
    model, deployment = controller.model, controller.deployment
    if model is None:
        return None
    precision = deployment.plan.precision if deployment else None
    status, reason = controller.status
    return ClusterModel(
        name=model.name,
        family=model.card.family,
        layers=model.card.layers,
        precision=precision,
        context_tokens=controller.context_tokens,
        weights_bytes=model.card.total_bytes(precision) if precision else None,
        stored_bytes=sum(entry.size_bytes for entry in model.manifest.tensors.values()),
        digest=model.manifest.digest,
        status=status,
        reason=reason,
    )

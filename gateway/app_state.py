"""What routes and console pages may take as parameters: FastAPI dependencies on what `gateway.app` built and runs.

A handler's parameter `ledger: Ledger` is what the web application's state holds under the name `ledger`. Functions
that handlers call use the same names as types.
"""

from collections.abc import Callable
from inspect import signature
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Request

from cluster import controller
from cluster.trust import addresses
from gateway import settings, storage
from gateway.admin import idle, ledger_checks
from gateway.admin.payments import payments_of
from gateway.batches import batches
from gateway.billing import bookkeeper, ledger_service, model_terms, request_log
from gateway.dialects.stored_responses.store import ResponseStore
from gateway.identity import directory
from gateway.lanes import base
from gateway.lanes.pool import lane
from gateway.lanes.preemptible import jobs
from gateway.limits import admission
from gateway.metrics import metrics
from gateway.requests import factory
from gateway.routing import pauses, router
from gateway.routing.queueing import turns
from gateway.telemetry import history
from runtime import afterwork

if TYPE_CHECKING:
    from gateway.billing.payments.payments_service import PaymentsService
    from market.marketplace import marketplace


def held(name: str) -> Any:
    """Return the dependency on what the application's state holds under this name."""

    async def find(request: Request) -> Any:
        return getattr(request.app.state, name)

    return Depends(find)


def bundle(kind: Callable[..., Any]) -> Any:
    """Return the dependency on several of them: `kind` is a dataclass whose fields are dependencies."""

    async def make(**values: Any) -> Any:
        return kind(**values)

    make.__signature__ = signature(kind)  # type: ignore[attr-defined]
    return Depends(make)


Admission = Annotated[admission.Admission, held("admission")]
Afterwork = Annotated[afterwork.Afterwork, held("afterwork")]
Batches = Annotated[batches.Batches, held("batches")]
Bookkeeper = Annotated[bookkeeper.Bookkeeper, held("bookkeeper")]
ClusterTarget = Annotated[addresses.Target, held("cluster")]
"""The address at which machines join the cluster."""
Controller = Annotated[controller.Controller, held("controller")]
Directory = Annotated[directory.Directory, held("directory")]
History = Annotated[history.History, held("history")]
IdleWatch = Annotated[idle.IdleWatch, held("idle")]
Lanes = Annotated[base.Lanes, held("lanes")]
Ledger = Annotated[ledger_service.LedgerService, held("ledger")]
Metrics = Annotated[metrics.Metrics, held("metrics")]
ModelTerms = Annotated[model_terms.ModelTerms, held("model_terms")]
Pauses = Annotated[pauses.Pauses, held("pauses")]
PoolLane = Annotated[lane.PoolLane, held("pool")]
PreemptibleJobs = Annotated[jobs.PreemptibleJobs, held("preemptible_jobs")]
RequestLog = Annotated[request_log.RequestLog, held("request_log")]
RequestPaths = Annotated[factory.RequestPaths, held("requests")]
Responses = Annotated[ResponseStore, held("responses")]
Router = Annotated[router.Router, held("router")]
Settings = Annotated[settings.Settings, held("settings")]
Storage = Annotated[storage.Storage, held("storage")]
Turns = Annotated[turns.Turns, held("turns")]
Verifier = Annotated[ledger_checks.Verifier, held("verifier")]

Marketplace = Annotated["marketplace.Marketplace", held("marketplace")]
"""The marketplace; only for routes that do not exist without one."""
OptionalMarketplace = Annotated["marketplace.Marketplace | None", held("marketplace")]
OptionalPayments = Annotated["PaymentsService | None", held("payments_service")]


async def _payments(found: OptionalPayments) -> "PaymentsService":
    return payments_of(found)


Payments = Annotated["PaymentsService", Depends(_payments)]
"""Payments. Raises FeatureUnsupported without them."""

"""GET /healthz, /readyz and /metrics, for monitoring."""

import time
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cluster.controller import Controller
from gateway.admin.troubles import troubles_of
from gateway.billing.bookkeeper import Bookkeeper
from gateway.billing.ledger_service import LedgerService
from gateway.lanes.base import Lanes
from gateway.limits.admission import Admission
from gateway.metrics.metrics import CONTENT_TYPE, Metrics
from gateway.settings import ClusterSettings
from gateway.storage import Storage


@dataclass(frozen=True, slots=True)
class Monitoring:
    """The state of this gateway for load balancers and Prometheus. `settings` are those of the cluster."""

    settings: ClusterSettings
    storage: Storage
    ledger: LedgerService
    lanes: Lanes
    controller: Controller
    metrics: Metrics
    admission: Admission
    bookkeeper: Bookkeeper

    def routes(self) -> list[Route]:
        return [
            Route("/healthz", self._is_alive),
            Route("/readyz", self._is_ready),
            Route("/metrics", self._metrics),
        ]

    async def _is_alive(self, _: Request) -> Response:
        """The process is alive. A restart would not repair a disk, so the status is 200 even if storage fails."""
        trouble = self.storage.trouble
        return JSONResponse({"status": "failing", "reason": trouble} if trouble else {"status": "ok"})

    async def _is_ready(self, _: Request) -> Response:
        """Ready means: requests for the models that this gateway was started with will be answered.

        `ledger` says which rules of the ledger are broken, and whether blocks are made. That alone does not stop
        answers. `ledger_checkpoint` is the newest block that this gateway has seen.
        `warnings` name problems that an operator must fix: the data directory, the cloud's key file, its worker.
        """
        readiness, status = await self._readiness()
        checkpoint = self.ledger.checkpoint
        further = {
            "ledger_checkpoint": str(checkpoint) if checkpoint else None,
            "warnings": troubles_of(self.storage, self.lanes),
        }
        return JSONResponse(readiness | further, status)

    async def _readiness(self) -> tuple[dict[str, str], int]:
        if self.storage.trouble:
            return _not_ready("failed", self.storage.trouble, "unknown")
        ledger = await self.ledger.condition()
        if not ledger.is_reachable:
            return _not_ready("failed", "the database does not answer", "unknown")
        troubles = [f"broken: {rule}" for rule in ledger.broken]
        if (left := self.ledger.unproven) is not None and left.trouble:
            troubles.append("no block can be made; see the log")
        facts = "; ".join(troubles) or "in order"
        cluster = self.settings
        status, reason = self.controller.embeddings.readiness.status
        if cluster.embedding_model and status not in _SERVES:
            return _not_ready(status, f"embeddings: {reason}", facts)
        status, reason = self.controller.chat.status
        if cluster.model and status not in _SERVES:
            return _not_ready(status, reason, facts)
        reason = reason if status in _SERVES else "no cluster model is configured"
        named = {model.name for model in cluster.models}
        for model, _ in self.controller.further:
            status, why = model.readiness.status
            if status == "failed":  # It does not keep the others from serving.
                reason += f"; {model.model_name} failed: {why}"
            # One that was added later is no reason to keep requests from this gateway while it is downloaded.
            elif model.model_name in named and status in _BEGINS and not model.readiness.has_settled:
                return _not_ready(status, f"{model.model_name}: {why}", facts)
        return {"status": "ready", "reason": reason, "ledger": facts}, 200

    async def _metrics(self, _: Request) -> Response:
        topology = self.controller.topology()
        self.metrics.in_flight.set(self.admission.in_flight)
        self.metrics.cluster_nodes.set(len(topology.members))
        self.metrics.cluster_epoch.set(topology.epoch)
        self.metrics.ledger_leader.set(self.ledger.leads)
        self.metrics.ledger_epoch.set(self.ledger.epoch)
        self.metrics.ledger_dropped_groups.set(self.ledger.dropped_groups)
        if (left := self.ledger.unproven) is not None:
            self.metrics.ledger_unproven_events.set(left.events)
            self.metrics.ledger_unproven_seconds.set(left.age_s(time.time_ns()))
        self.metrics.ledger_checkpoint_block.set(checkpoint.n if (checkpoint := self.ledger.checkpoint) else 0)
        self.metrics.ledger_lag.set(self.ledger.waiting + self.bookkeeper.waiting)
        return Response(self.metrics.render(), media_type=CONTENT_TYPE)


# A request loads an unloaded model.
_SERVES = ("ready", "draining", "unloaded")
_BEGINS = ("waiting", "planning")


def _not_ready(status: str, reason: str, ledger: str) -> tuple[dict[str, str], int]:
    return {"status": status, "reason": reason, "ledger": ledger}, 503

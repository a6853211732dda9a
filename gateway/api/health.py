"""GET /healthz, /readyz and /metrics, for monitoring."""

import time
from functools import partial

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.metrics.metrics import CONTENT_TYPE
from gateway.services import Services


def routes(services: Services) -> list[Route]:
    return [
        Route("/healthz", partial(_is_alive, services)),
        Route("/readyz", partial(_is_ready, services)),
        Route("/metrics", partial(_metrics, services)),
    ]


async def _is_alive(services: Services, _: Request) -> Response:
    """The process is alive. A restart would not repair a disk, so the status is 200 even if storage fails."""
    trouble = services.storage.trouble
    return JSONResponse({"status": "failing", "reason": trouble} if trouble else {"status": "ok"})


async def _is_ready(services: Services, _: Request) -> Response:
    """Ready means: requests for the models that this gateway was started with will be answered.

    `ledger` says which rules of the ledger are broken, and whether blocks are made. That alone does not stop
    answers. `ledger_checkpoint` is the newest block that this gateway has seen.
    `warnings` name problems that an operator must fix: the data directory, the cloud's key file, its worker.
    """
    readiness, status = await _readiness(services)
    checkpoint = services.ledger.checkpoint
    further = {"ledger_checkpoint": str(checkpoint) if checkpoint else None, "warnings": services.troubles()}
    return JSONResponse(readiness | further, status)


async def _readiness(services: Services) -> tuple[dict[str, str], int]:
    if services.storage.trouble:
        return _not_ready("failed", services.storage.trouble, "unknown")
    ledger = await services.ledger.condition()
    if not ledger.is_reachable:
        return _not_ready("failed", "the database does not answer", "unknown")
    troubles = [f"broken: {rule}" for rule in ledger.broken]
    if (left := services.ledger.unproven) is not None and left.trouble:
        troubles.append("no block can be made; see the log")
    facts = "; ".join(troubles) or "in order"
    cluster = services.settings.cluster
    status, reason = services.controller.embeddings.readiness.status
    if cluster.embedding_model and status != "ready":
        return _not_ready(status, f"embeddings: {reason}", facts)
    status, reason = services.controller.chat.status
    if cluster.model and status != "ready":
        return _not_ready(status, reason, facts)
    reason = reason if status == "ready" else "no cluster model is configured"
    for model, _ in services.controller.further:
        status, why = model.readiness.status
        if status == "failed":  # It does not keep the others from serving.
            reason += f"; {model.model_name} failed: {why}"
        elif status != "ready":
            return _not_ready(status, f"{model.model_name}: {why}", facts)
    return {"status": "ready", "reason": reason, "ledger": facts}, 200


def _not_ready(status: str, reason: str, ledger: str) -> tuple[dict[str, str], int]:
    return {"status": status, "reason": reason, "ledger": ledger}, 503


async def _metrics(services: Services, _: Request) -> Response:
    topology = services.controller.topology()
    services.metrics.in_flight.set(services.admission.in_flight)
    services.metrics.cluster_nodes.set(len(topology.members))
    services.metrics.cluster_epoch.set(topology.epoch)
    services.metrics.ledger_leader.set(services.ledger.leads)
    services.metrics.ledger_epoch.set(services.ledger.epoch)
    if (left := services.ledger.unproven) is not None:
        services.metrics.ledger_unproven_events.set(left.events)
        services.metrics.ledger_unproven_seconds.set(left.age_s(time.time_ns()))
    services.metrics.ledger_checkpoint_block.set(checkpoint.n if (checkpoint := services.ledger.checkpoint) else 0)
    services.metrics.ledger_lag.set(services.ledger.waiting + services.bookkeeper.waiting)
    return Response(services.metrics.render(), media_type=CONTENT_TYPE)

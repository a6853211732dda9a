"""GET /healthz, /readyz and /metrics, for whoever watches over the gateway."""

from fastapi import APIRouter, Request, Response

from gateway.observability.metrics import CONTENT_TYPE
from gateway.services import Services

router = APIRouter()


@router.get("/healthz")
async def is_alive() -> dict[str, str]:
    return {"status": "ok"}


@router.get("/readyz")
async def is_ready(request: Request, response: Response) -> dict[str, str]:
    """Ready means: requests for the models that this gateway was started with will be answered.

    `books` says which rules of the books are broken; that alone keeps nobody from being answered.
    """
    services: Services = request.app.state.services
    books = await services.books.condition()
    if not books.is_reachable:
        response.status_code = 503
        return {"status": "failed", "reason": "the database does not answer", "books": "unknown"}
    facts = {"books": "; ".join(f"broken: {rule}" for rule in books.broken) or "in order"}
    cluster = services.settings.cluster
    status, reason = services.controller.embeddings.readiness.status
    if cluster.embedding_model and status != "ready":
        response.status_code = 503
        return {"status": status, "reason": f"embeddings: {reason}"} | facts
    status, reason = services.controller.status
    if cluster.model and status != "ready":
        response.status_code = 503
        return {"status": status, "reason": reason} | facts
    return {"status": "ready", "reason": reason if status == "ready" else "no cluster model was asked for"} | facts


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    services: Services = request.app.state.services
    topology = services.controller.topology()
    services.metrics.in_flight.set(services.admission.in_flight)
    services.metrics.cluster_nodes.set(len(topology.members))
    services.metrics.cluster_epoch.set(topology.epoch)
    services.metrics.books_lag.set(services.books.waiting + services.bookkeeper.waiting)
    return Response(services.metrics.render(), media_type=CONTENT_TYPE)

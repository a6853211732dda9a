"""GET /healthz, /readyz and /metrics, for whoever watches over the gateway."""

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from gateway.services import Services

router = APIRouter()


@router.get("/healthz")
async def is_alive() -> dict[str, str]:
    return {"status": "ok"}


@router.get("/readyz")
async def is_ready(request: Request, response: Response) -> dict[str, str]:
    """Ready means: requests for the model that this gateway was started with will be answered."""
    services: Services = request.app.state.services
    status, reason = services.controller.status
    if services.settings.cluster.model and status != "ready":
        response.status_code = 503
        return {"status": status, "reason": reason}
    return {"status": "ready", "reason": reason if status == "ready" else "no cluster model was asked for"}


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    services: Services = request.app.state.services
    topology = services.controller.topology()
    services.metrics.in_flight.set(services.admission.in_flight)
    services.metrics.cluster_nodes.set(len(topology.members))
    services.metrics.cluster_epoch.set(topology.epoch)
    services.metrics.books_lag.set(services.books.waiting)
    return Response(services.metrics.render(), media_type=CONTENT_TYPE_LATEST)

"""The web face: every route but those that carry the traffic, which never become ASGI (gateway.http.hot)."""

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp

from cluster.trust.addresses import Target
from gateway.api import admin, batches, files, health, messages, models, ollama, responses, routes_admin
from gateway.api.edge import BoundedBodies, misspelt
from gateway.console import pages
from gateway.dialects.routes import ROUTES
from gateway.errors import GatewayError, MethodNotAllowed, NotFound, RequestInvalid, to_api_error
from gateway.pool import api as pool_api
from gateway.services import Services

log = structlog.get_logger(__name__)

# They have a bound of their own, and ask for the key first.
_UPLOADS = ("/v1/files",)


def make_web(services: Services, cluster: Target) -> ASGIApp:
    """FastAPI with all of them, and every error in OpenAI's shape."""
    app = FastAPI(title="Millrace", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.services = services
    app.state.cluster = cluster
    # FastAPI knows the hot routes too, to say of other methods that they are not allowed.
    app.router.routes.extend(Route(route.path, misspelt, methods=["POST"]) for route in ROUTES)
    for router in (responses.router, messages.router, ollama.router, files.router, batches.router):
        app.include_router(router)
    for router in (models.router, health.router, admin.router, routes_admin.router, pool_api.router, pages.router):
        app.include_router(router)
    app.mount("/console/static", pages.static)
    for kind in (GatewayError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _answer_error)
    return BoundedBodies(app, services.settings.server.body_bytes_max, _UPLOADS)


async def _answer_error(request: Request, error: Exception) -> Response:
    """Any route's error in OpenAI's shape."""
    if isinstance(error.__cause__, GatewayError):
        error = error.__cause__  # FastAPI has words of its own for whatever keeps it from reading a body
    if isinstance(error, HTTPException):
        error = _of_status(request, error)
    elif isinstance(error, RequestValidationError):
        error = _of_field(error)
    elif not isinstance(error, GatewayError):
        log.error("request failed", path=request.url.path, exc_info=error)
    answer = to_api_error(error)
    headers = {name.decode(): value.decode() for name, value in answer.headers}
    return Response(answer.body(), answer.status, headers, "application/json")


def _of_status(request: Request, error: HTTPException) -> GatewayError:
    what = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return NotFound(f"There is no {what}.")
    if error.status_code == 405:
        return MethodNotAllowed(f"{what} is not allowed.")
    return RequestInvalid(str(error.detail))


def _of_field(error: RequestValidationError) -> GatewayError:
    """The first field that is wrong; its place begins with where the field was, as in ("query", "limit")."""
    problem = error.errors()[0]
    param = ".".join(map(str, problem["loc"][1:]))
    return RequestInvalid(f"{param}: {problem['msg']}", param=param)

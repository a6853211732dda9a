"""The web application: every route other than hot routes (http.hot) and frequent ones (api.plain)."""

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp

from accounting.errors import LedgerError
from cluster.trust.addresses import Target
from gateway.admin.fields import refusal_of
from gateway.admin.idle import IdleWatch
from gateway.api import admin, advice, batches, files, messages, ollama, preemptible, responses, routes_admin
from gateway.api import pool as pool_api
from gateway.api.accounting import ledger
from gateway.api.accounting.routes import accounting_routers
from gateway.api.edge import BoundedBodies, misspelt
from gateway.api.plain import plain_routes
from gateway.billing.asked import AskedBefore
from gateway.console.console import add_console
from gateway.console.errors import answer_error, is_console
from gateway.dialects.routes import ROUTES
from gateway.errors import DATABASE_AWAY
from gateway.http.error_response import error_response
from gateway.services import Services
from runtime.errors import MethodNotAllowed, NotFound, RequestInvalid, ServiceError

# They have their own size limit, and check the key first.
_UPLOADS = ("/v1/files",)


def make_web(services: Services, cluster: Target) -> ASGIApp:
    """Return FastAPI with all routes, and every error in OpenAI's shape."""
    # No redirect to the path without a slash: Starlette would redirect to the host in the client's Host header.
    app = FastAPI(title="Millrace", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.services = services
    app.state.cluster = cluster
    app.state.idle = IdleWatch(services)
    app.state.asked = AskedBefore(services.directory.write, is_alone=services.settings.database.dsn is None)
    # FastAPI also knows the earlier routes, to answer other methods with 405.
    app.router.routes.extend(Route(route.path, misspelt, methods=["POST"]) for route in ROUTES)
    app.router.routes.extend(plain_routes(services))
    for router in (responses.router, messages.router, ollama.router, files.router, batches.router):
        app.include_router(router)
    for router in (
        admin.router,
        advice.router,
        routes_admin.router,
        preemptible.router,
        pool_api.router,
        ledger.router,
    ):
        app.include_router(router)
    for router in accounting_routers(has_payments=services.payments_service is not None):
        app.include_router(router)
    if services.marketplace is not None:
        from gateway.api.marketplace.relay import relay_router
        from gateway.api.marketplace.relay_factory import relay_of
        from gateway.api.marketplace.routes import marketplace_routers

        relay = relay_of(services.marketplace, lambda: services.preemptible_jobs.is_closed)
        for router in (*marketplace_routers(services.marketplace), relay_router(relay)):
            app.include_router(router)
    add_console(app, services)
    for kind in (ServiceError, LedgerError, *DATABASE_AWAY, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _answer_error)
    return BoundedBodies(app, services.settings.server.body_bytes_max, _UPLOADS)


async def _answer_error(request: Request, error: Exception) -> Response:
    """Return any route's error: in OpenAI's shape, or as a page of the console."""
    if isinstance(error.__cause__, ServiceError):
        error = error.__cause__  # FastAPI has its own messages for unreadable bodies
    if isinstance(error, HTTPException):
        error = _of_status(request, error)
    elif isinstance(error, RequestValidationError):
        # The first wrong field; its location begins with the source, as in ("query", "limit").
        problem = error.errors()[0]
        error = refusal_of(problem, problem["loc"][1:])
    if is_console(request):
        return answer_error(request, error)
    return error_response(error, request.url.path)


def _of_status(request: Request, error: HTTPException) -> ServiceError:
    what = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return NotFound(f"{what} not found.")
    if error.status_code == 405:
        return MethodNotAllowed(f"{what} is not allowed.")
    return RequestInvalid(str(error.detail))

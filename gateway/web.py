"""The web application: every route other than hot routes (http.hot) and frequent ones (api.plain)."""

from collections.abc import Iterable, Mapping, Sequence

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp

from accounting.errors import LedgerError
from gateway.admin.fields import refusal_of
from gateway.api import (
    admin,
    advice,
    batches,
    deployments,
    files,
    messages,
    ollama,
    preemptible,
    responses,
    routes_admin,
)
from gateway.api import pool as pool_api
from gateway.api.accounting import ledger
from gateway.api.edge import BoundedBodies, misspelt
from gateway.console.console import add_console
from gateway.console.errors import answer_error, is_console
from gateway.dialects.routes import ROUTES
from gateway.errors import DATABASE_AWAY
from gateway.http.error_response import error_response
from runtime.errors import MethodNotAllowed, NotFound, RequestInvalid, ServiceError

# They have their own size limit, and check the key first.
_UPLOADS = ("/v1/files",)


def make_web(
    state: Mapping[str, object], plain: Sequence[Route], optional: Iterable[APIRouter], body_bytes_max: int
) -> ASGIApp:
    """Return FastAPI with all routes, and every error in OpenAI's shape.

    `state` has what handlers ask for (`gateway.app_state`), by name. `plain` are the routes that bypass the framework,
    and `optional` the routers that depend on the settings.
    """
    # No redirect to the path without a slash: Starlette would redirect to the host in the client's Host header.
    app = FastAPI(title="Millrace", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state = State(dict(state))
    # FastAPI also knows the earlier routes, to answer other methods with 405.
    app.router.routes.extend(Route(route.path, misspelt, methods=["POST"]) for route in ROUTES)
    app.router.routes.extend(plain)
    for router in (responses.router, messages.router, ollama.router, files.router, batches.router):
        app.include_router(router)
    for router in (
        admin.router,
        advice.router,
        deployments.router,
        routes_admin.router,
        preemptible.router,
        pool_api.router,
        ledger.router,
    ):
        app.include_router(router)
    for router in optional:
        app.include_router(router)
    add_console(app)
    for kind in (ServiceError, LedgerError, *DATABASE_AWAY, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _answer_error)
    return BoundedBodies(app, body_bytes_max, _UPLOADS)


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

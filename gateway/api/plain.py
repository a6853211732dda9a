"""Routes that are requested every few seconds, which bypass the framework."""

from collections.abc import Sequence

import structlog
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from accounting.errors import LedgerError
from gateway.api import health, models
from gateway.errors import to_api_error
from gateway.services import Services
from runtime.errors import ServiceError

log = structlog.get_logger(__name__)


def plain_routes(services: Services) -> list[Route]:
    return [*health.routes(services), *models.routes(services)]


class PlainRoutes:
    """A layer that answers requests matching one of `routes`, and passes all others to the next app."""

    def __init__(self, routes: Sequence[Route], app: ASGIApp) -> None:
        self._routes = routes
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for route in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                await _answer(route, {**scope, **found}, receive, send)
                return
        await self._app(scope, receive, send)


async def _answer(route: Route, scope: Scope, receive: Receive, send: Send) -> None:
    try:
        await route.handle(scope, receive, send)
    except Exception as error:  # noqa: BLE001 - the request's edge
        await error_response(error, scope["path"])(scope, receive, send)


def error_response(error: Exception, path: str) -> Response:
    """Return any error in OpenAI's shape; the text of an internal error goes only to the log."""
    if not isinstance(error, ServiceError | LedgerError):
        log.error("request failed", path=path, exc_info=error)
    answer = to_api_error(error)
    headers = {name.decode(): value.decode() for name, value in answer.headers}
    return Response(answer.body(), answer.status, headers, "application/json")

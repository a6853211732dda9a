"""Routes that are requested every few seconds, which bypass the framework."""

from collections.abc import Sequence

from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.error_response import error_response


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

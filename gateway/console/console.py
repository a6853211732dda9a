"""Assembles the console: its pages, its live streams, and its own page for unknown addresses."""

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from starlette.routing import Match

from gateway.console import sign_in, static_files
from gateway.console.access import find_visitor
from gateway.console.browser import PATH
from gateway.console.navigation import PAGES, Page
from gateway.console.pages import ROUTERS
from runtime.errors import NotFound

_last = APIRouter()


def add_console(app: FastAPI) -> None:
    """Add the console's routes behind all other routes of the app."""
    app.state.pages = tuple(page for page in PAGES if _is_built(page))
    for router in (static_files.router, sign_in.router, *ROUTERS, _last):
        app.include_router(router, include_in_schema=False)


def _is_built(page: Page) -> bool:
    """Whether a router answers at the page's path."""
    scope = {"type": "http", "method": "GET", "path": page.path, "headers": []}
    routes = (route for router in ROUTERS for route in router.routes)
    return any(route.matches(scope)[0] is Match.FULL for route in routes)


@_last.get(f"{PATH}/")
async def with_slash() -> Response:
    """Redirect from the path with a trailing slash, which users may type."""
    return RedirectResponse(PATH, status_code=308)


@_last.get(f"{PATH}/{{path:path}}")
async def nothing(request: Request) -> Response:
    """Raise NotFound, which is shown inside the visitor's frame if the visitor is signed in."""
    await find_visitor(request)
    raise NotFound("Page not found. Check the address.")

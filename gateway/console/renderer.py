"""Renders templates: whole pages in the console's frame, parts of pages, and toasts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from fastapi import Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from gateway.console import navigation
from gateway.console.access import Visitor
from gateway.console.browser import forget, is_htmx, keep, root_of
from gateway.console.filters import FILTERS
from gateway.console.forms import Form
from gateway.console.static_files import icon, url_of

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; font-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
_TOAST_COOKIE = "millrace_toast"
_TOAST_S = 20
_TOAST_MAX = 300

_templates = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=select_autoescape(),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters |= FILTERS
_templates.globals |= {"static": url_of, "icon": icon, "blank": Form()}


def render(template: str, **values: Any) -> str:
    """Render a template that needs no visitor."""
    macros = _templates.get_template("macros.html").make_module({"csrf": values.get("csrf")})
    return _templates.get_template(template).render(values, ui=macros)


def page(template: str, visitor: Visitor | None, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a whole page; without a visitor a page that has no frame, such as the sign-in page."""
    if visitor is None:
        return HTMLResponse(render(template, visitor=None, toast="", **values), status, HEADERS)
    toast = unquote(visitor.request.cookies.get(_TOAST_COOKIE, ""))[:_TOAST_MAX]
    text = render(template, **_frame(visitor), toast=toast, **values)
    response = HTMLResponse(text, status, HEADERS)
    if toast:
        forget(response, visitor.request, _TOAST_COOKIE)
    return response


def partial(
    template: str, visitor: Visitor, status: int = 200, *, toast: str = "", is_bad: bool = False, **values: Any
) -> HTMLResponse:
    """Return a part of a page for htmx to insert; `toast` is also shown at the window's edge."""
    text = render(template, visitor=visitor, csrf=visitor.csrf, **values)
    if toast:
        text += render("toast.html", toast=toast, is_bad=is_bad)
    return HTMLResponse(text, status, HEADERS)


def go(visitor: Visitor, path: str, toast: str = "") -> Response:
    """Redirect to another page after a form succeeded; `toast` is shown there."""
    if is_htmx(visitor.request):
        response = Response(status_code=204, headers={"hx-redirect": path})
    else:
        response = RedirectResponse(path, status_code=303)
    if toast:
        keep(response, visitor.request, _TOAST_COOKIE, quote(toast[:_TOAST_MAX]), _TOAST_S)
    return response


def _frame(visitor: Visitor) -> Mapping[str, Any]:
    """Return the values of the frame around every page."""
    request, state = visitor.request, visitor.request.app.state
    return {
        "visitor": visitor,
        "csrf": visitor.csrf,
        "groups": navigation.visible(state.pages, visitor.standings),
        "here": navigation.current(request.url.path),
        "base_url": root_of(request) + "/v1",
        "has_marketplace": state.marketplace is not None,
        "is_test_mode": state.payments_service is not None and not state.payments_service.is_live,
    }


def pages_of(request: Request) -> tuple[navigation.Page, ...]:
    """Return the pages that have a router."""
    pages: tuple[navigation.Page, ...] = request.app.state.pages
    return pages

"""Errors of the console: a page in its frame, a toast, or a redirect to the sign-in page."""

import structlog
from fastapi import Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from accounting.errors import LedgerError
from gateway.console.access import SignInNeeded, Visitor
from gateway.console.browser import PATH, is_htmx
from gateway.console.renderer import HEADERS, page, render
from gateway.errors import to_api_error
from gateway.http.error_response import error_response
from runtime.errors import ServiceError
from runtime.http.api_error import ApiError

log = structlog.get_logger(__name__)

_TITLES = {
    400: "Invalid request",
    403: "Access denied",
    404: "Not found",
    405: "Not allowed here",
    409: "Conflict",
    413: "Too large",
    429: "Too many requests",
    500: "Internal error",
    502: "A backend failed",
    503: "Temporarily unavailable",
}


def is_console(request: Request) -> bool:
    """Whether the request is for one of the console's pages."""
    return request.url.path == PATH or request.url.path.startswith(f"{PATH}/")


def answer_error(request: Request, error: Exception) -> Response:
    """Answer in the form that the client can use: a page, a toast, or OpenAI's error format for programs."""
    if isinstance(error, SignInNeeded):
        return _to_sign_in(request, error)
    if "text/html" not in request.headers.get("accept", ""):
        return error_response(error, request.url.path)
    if not isinstance(error, ServiceError | LedgerError):
        log.error("request failed", path=request.url.path, exc_info=error)
    answer = to_api_error(error)
    response = _word(answer) if is_htmx(request) else _page(request, answer)
    response.headers.update({name.decode(): value.decode() for name, value in answer.headers})
    return response


def _to_sign_in(request: Request, error: SignInNeeded) -> Response:
    """Redirect to the sign-in page. A script cannot follow a redirect, so a header tells it the address."""
    if is_htmx(request):
        return Response(status_code=401, headers={"hx-redirect": error.sign_in_path})
    return RedirectResponse(error.sign_in_path, status_code=303)


def _word(answer: ApiError) -> HTMLResponse:
    """Return a toast; the page stays as it is."""
    text = render("toast.html", toast=answer.message, is_bad=True)
    return HTMLResponse(text, answer.status, HEADERS | {"hx-reswap": "none"})


def _page(request: Request, answer: ApiError) -> HTMLResponse:
    visitor: Visitor | None = getattr(request.state, "visitor", None)
    title = _TITLES.get(answer.status, "Request failed")
    request_id = structlog.contextvars.get_contextvars().get("request_id", "")
    values = {"title": title, "code": answer.status, "message": answer.message, "request_id": request_id}
    return page("error.html", visitor, answer.status, **values)

"""The console: sign in with an API key, then see requests and money; the owner's keys see machines, too."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from itsdangerous import BadSignature, URLSafeTimedSerializer
from jinja2 import Environment, FileSystemLoader, select_autoescape

from accounting.money import format_usd
from gateway.api.admin import describe
from gateway.api.generate import read_body
from gateway.identity.caller import Caller
from gateway.identity.keys import OWNER
from gateway.services import Services

COOKIE = "millrace_session"
SESSION_S = 12 * 3600
REQUESTS_SHOWN = 25
FORM_BYTES_MAX = 4096

_HERE = Path(__file__).parent
_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}

static = StaticFiles(directory=_HERE / "static")
router = APIRouter(prefix="/console", include_in_schema=False)

_templates = Environment(loader=FileSystemLoader(_HERE / "templates"), autoescape=select_autoescape())


@router.get("")
async def overview(request: Request) -> Response:
    services: Services = request.app.state.services
    caller = await _signed_in(request, services)
    if caller is None:
        return _page("login.html", status=200, problem=None)
    balance = await services.books.balance(caller.user_id)
    # Machines and everybody's requests are the owner's affair; other users' keys see what they asked themselves.
    is_owner = caller.user_id == OWNER
    of_key = None if is_owner else caller.key_id
    entries = await asyncio.to_thread(services.request_log.newest, REQUESTS_SHOWN, of_key)
    return _page(
        "overview.html",
        base_url=str(request.base_url).rstrip("/") + "/v1",
        key_prefix=caller.key_prefix,
        user=caller.user_id,
        cluster=describe(services.controller.topology()) if is_owner else None,
        lanes={name: lane.models() for name, lane in services.lanes.items() if is_owner or name in caller.lanes},
        requests=entries,
        available=format_usd(balance.available_nano),
        held=format_usd(balance.held_nano),
    )


@router.post("/login")
async def login(request: Request) -> Response:
    services: Services = request.app.state.services
    form = parse_qs((await read_body(request.scope, request.receive, FORM_BYTES_MAX)).decode("ascii", "replace"))
    caller = await asyncio.to_thread(services.keys.find, form.get("key", [""])[0].strip())
    if caller is None:
        return _page("login.html", status=401, problem="This key is not valid here.")
    response = RedirectResponse("/console", status_code=303)
    response.set_cookie(
        COOKIE,
        _serializer(services).dumps(caller.key_id),
        max_age=SESSION_S,
        path="/console",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


@router.post("/logout")
async def logout() -> Response:
    response = RedirectResponse("/console", status_code=303)
    response.delete_cookie(COOKIE, path="/console")
    return response


async def _signed_in(request: Request, services: Services) -> Caller | None:
    """The caller of the session cookie, while the key that opened it is valid."""
    try:
        key_id = _serializer(services).loads(request.cookies.get(COOKIE, ""), max_age=SESSION_S)
    except BadSignature:
        return None
    return await asyncio.to_thread(services.keys.find_by_id, str(key_id))


def _serializer(services: Services) -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(services.keys.session_secret, salt="console session")


def _page(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    return HTMLResponse(_templates.get_template(template).render(**values), status, _HEADERS)


def _clock(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9, UTC).strftime("%H:%M:%S")


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.0f} MiB"


_templates.filters |= {"clock": _clock, "size": _size}

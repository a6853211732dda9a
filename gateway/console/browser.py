"""What a browser brings along: the session in its cookie, and whether a form of it is one of ours."""

import asyncio
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fastapi import Request, Response
from starlette.requests import ClientDisconnect

from gateway.errors import BodyTooLarge, RequestInvalid, RoleForbids
from gateway.identity.directory import Directory
from gateway.identity.sessions import SignedIn

COOKIE = "millrace_session"
PATH = "/console"
FORM_BYTES_MAX = 4096
FORM_TIMEOUT_S = 30.0


def directory_of(request: Request) -> Directory:
    directory: Directory = request.app.state.services.directory
    return directory


async def signed_in(request: Request) -> SignedIn | None:
    """Who signed in with this browser, while that is valid."""
    return await asyncio.to_thread(directory_of(request).sessions.find, request.cookies.get(COOKIE, ""))


async def read_form(request: Request) -> dict[str, str]:
    """The first value of each field of a form of ours. Raises RoleForbids for other sites' forms, BodyTooLarge."""
    refuse_foreign(request)
    body = await _read(request)
    return {name: values[0].strip() for name, values in parse_qs(body.decode("ascii", "replace")).items()}


async def _read(request: Request) -> bytes:
    body = b""
    try:
        async with asyncio.timeout(FORM_TIMEOUT_S):
            async for part in request.stream():
                body += part
                if len(body) > FORM_BYTES_MAX:
                    raise BodyTooLarge(f"The form is larger than {FORM_BYTES_MAX} bytes, its limit.")
    except (TimeoutError, ClientDisconnect):
        raise RequestInvalid("The form did not arrive whole.") from None
    return body


def refuse_foreign(request: Request) -> None:
    """Browsers say where a form came from; one of an unencrypted page may say nothing. Raises RoleForbids."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin", "null")
    if site is not None:
        is_own = site in ("same-origin", "none")
    else:
        is_own = origin == "null" or urlsplit(origin).netloc in _own_hosts(request)
    if not is_own:
        raise RoleForbids("This form was sent by another site. Sign in on the console's own page.")


def root_of(request: Request) -> str:
    """The gateway's address as this browser sees it, without a slash at its end."""
    return (directory_of(request).settings.public_url or str(request.base_url)).rstrip("/")


def keep(response: Response, request: Request, name: str, value: str, max_age_s: int, path: str = PATH) -> None:
    """A cookie that no script reads and that other sites' forms do not carry.

    Lax, not strict: a browser that comes back from the identity provider comes from another site.
    """
    response.set_cookie(name, value, max_age=max_age_s, path=path, **_terms(request))


def forget(response: Response, request: Request, name: str, path: str = PATH) -> None:
    response.delete_cookie(name, path=path, **_terms(request))


def _terms(request: Request) -> dict[str, Any]:
    return {"httponly": True, "samesite": "lax", "secure": root_of(request).startswith("https:")}


def _own_hosts(request: Request) -> set[str]:
    return {urlsplit(root_of(request)).netloc, request.headers.get("host", "")}

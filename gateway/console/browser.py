"""Reads a browser's request: the session cookie, form fields, and their origin."""

import asyncio
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from fastapi import Request, Response
from starlette.requests import ClientDisconnect

from gateway.errors import RoleForbids
from gateway.identity.directory import Directory
from gateway.identity.sessions import SignedIn
from runtime.errors import BodyTooLarge, RequestInvalid

COOKIE = "millrace_session"
PATH = "/console"
SIGN_IN_PATH = f"{PATH}/login"
FORM_BYTES_MAX = 4096
"""Size limit of forms that are open to unauthenticated clients."""
FORM_TIMEOUT_S = 30.0
_FIELDS_MAX = 500
# A sign-in never redirects back to a page that ends the session or starts another sign-in.
_NO_WAY_BACK = (SIGN_IN_PATH, f"{PATH}/logout", f"{PATH}/oidc")


def directory_of(request: Request) -> Directory:
    directory: Directory = request.app.state.directory
    return directory


async def signed_in(request: Request) -> SignedIn | None:
    """Return the user who signed in with this browser while the session is valid, else None."""
    return await asyncio.to_thread(directory_of(request).sessions.find, request.cookies.get(COOKIE, ""))


async def read_fields(request: Request, bytes_max: int = FORM_BYTES_MAX) -> dict[str, list[str]]:
    """Return every value of each field of a form of this console.

    Raises RoleForbids for other sites' forms, BodyTooLarge, and RequestInvalid for a malformed form.
    """
    refuse_foreign(request)
    body = await _read(request, bytes_max)
    try:
        return parse_qs(body.decode("ascii", "replace"), keep_blank_values=True, max_num_fields=_FIELDS_MAX)
    except ValueError:
        raise RequestInvalid(f"The form has too many fields. The limit is {_FIELDS_MAX}.") from None


async def read_texts(request: Request) -> dict[str, str]:
    """Return the first value of each field, for forms with one value per field. Raises as `read_fields` does."""
    return {name: values[0].strip() for name, values in (await read_fields(request)).items()}


async def _read(request: Request, bytes_max: int) -> bytes:
    body = bytearray()  # large forms may arrive in many small chunks
    try:
        async with asyncio.timeout(FORM_TIMEOUT_S):
            async for part in request.stream():
                body += part
                if len(body) > bytes_max:
                    raise BodyTooLarge(f"The form is too large. The limit is {bytes_max} bytes.")
    except (TimeoutError, ClientDisconnect):
        raise RequestInvalid("The form arrived incomplete. Send it again.") from None
    return bytes(body)


def refuse_foreign(request: Request) -> None:
    """Raise RoleForbids for another site's form. Browsers name a form's origin; unencrypted pages may omit it."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin", "null")
    if site is not None:
        is_own = site in ("same-origin", "none")
    else:
        is_own = origin == "null" or urlsplit(origin).netloc in _own_hosts(request)
    if not is_own:
        raise RoleForbids("This form came from another site. Sign in on the console's own page.")


def is_htmx(request: Request) -> bool:
    """Whether one of our scripts sent the request and inserts the response into an open page."""
    return request.headers.get("hx-request") == "true"


def own_path(text: str) -> str:
    """Return a console path with its query for a redirect, or the console's first page for any other text."""
    is_plain = text.isascii() and text.isprintable() and "\\" not in text and len(text) <= 2000
    parts = urlsplit(text) if is_plain else None
    if parts is None or parts.scheme or parts.netloc or ".." in unquote(parts.path):
        return PATH
    if not f"{parts.path}/".startswith(f"{PATH}/") or parts.path.startswith(_NO_WAY_BACK):
        return PATH
    return parts.path + (f"?{parts.query}" if parts.query else "")


def root_of(request: Request) -> str:
    """Return the gateway's address as this browser sees it, without a trailing slash."""
    return (directory_of(request).settings.public_url or str(request.base_url)).rstrip("/")


def keep(response: Response, request: Request, name: str, value: str, max_age_s: int, path: str = PATH) -> None:
    """Set a cookie that scripts cannot read and that other sites' forms do not carry.

    SameSite is lax, not strict: a browser returning from the identity provider comes from another site.
    """
    response.set_cookie(name, value, max_age=max_age_s, path=path, **_terms(request))


def forget(response: Response, request: Request, name: str, path: str = PATH) -> None:
    response.delete_cookie(name, path=path, **_terms(request))


def _terms(request: Request) -> dict[str, Any]:
    return {"httponly": True, "samesite": "lax", "secure": root_of(request).startswith("https:")}


def _own_hosts(request: Request) -> set[str]:
    return {urlsplit(root_of(request)).netloc, request.headers.get("host", "")}

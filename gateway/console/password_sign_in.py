"""Sign-in with a user name and a password, and the one-time link for setting a password."""

from typing import Annotated

import structlog
from fastapi import APIRouter, Query, Request, Response

from gateway.console.browser import PATH, directory_of, own_path, read_texts
from gateway.console.forms import sentence
from gateway.console.renderer import page
from gateway.console.sign_in import address_of, login_page, open_session
from gateway.errors import TooManyWrongKeys
from gateway.identity.password_hash import LENGTH_MAX, LENGTH_MIN
from gateway.identity.passwords import PasswordLink
from runtime.errors import Conflict, KeyInvalid, NotFound, Overloaded, RequestInvalid

log = structlog.get_logger(__name__)

router = APIRouter(prefix=PATH)

_USER_MAX = 80


@router.post("/login/password")
async def login(request: Request) -> Response:
    """Sign in. An error does not reveal whether the user exists."""
    form = await read_texts(request)
    way_back, user_id = own_path(form.get("next", PATH)), form.get("user", "")[:_USER_MAX]
    try:
        user = await directory_of(request).password_gate.admit(
            user_id, form.get("password", ""), address_of(request)
        )
    except KeyInvalid as error:
        log.warning("sign-in refused", reason="wrong password", address=address_of(request))
        return await login_page(request, 401, error.message, way_back, user_id)
    except (TooManyWrongKeys, Overloaded) as error:
        status = 429 if isinstance(error, TooManyWrongKeys) else 503
        answer = await login_page(request, status, error.message, way_back, user_id)
        answer.headers["retry-after"] = str(error.retry_after_s)
        return answer
    return await open_session(request, user.user_id, None, way_back)


@router.get("/welcome")
async def welcome(request: Request, token: Annotated[str, Query(max_length=200)] = "") -> Response:
    """Show the form. Viewing does not use up the link: programs that preview links fetch it, too."""
    try:
        link = await directory_of(request).password_gate.link(token, address_of(request))
    except (NotFound, TooManyWrongKeys) as error:
        return _page(None, token, error.message, 429 if isinstance(error, TooManyWrongKeys) else 404)
    return _page(link, token)


@router.post("/welcome")
async def choose(request: Request) -> Response:
    """Set the password and sign the user in."""
    form = await read_texts(request)
    token, gate, address = form.get("token", ""), directory_of(request).password_gate, address_of(request)
    try:
        link = await gate.link(token, address)
        problem = "The passwords do not match." if form.get("password") != form.get("again") else ""
        if problem:
            return _page(link, token, problem, 400)
        user = await gate.choose(token, form.get("password", ""), address)
    except RequestInvalid as error:
        return _page(link, token, sentence(error.message.removeprefix(f"{error.param}: ")), 400)
    except (NotFound, Conflict, Overloaded, TooManyWrongKeys) as error:
        status = {NotFound: 404, Conflict: 409, Overloaded: 503}.get(type(error), 429)
        return _page(None, token, error.message, status)
    return await open_session(request, user.user_id, None, PATH)


def _page(link: PasswordLink | None, token: str, problem: str = "", status: int = 200) -> Response:
    """Return the form, or without a link only the reason why it does not work."""
    return page(
        "welcome.html",
        None,
        status,
        link=link,
        token=token,
        problem=problem,
        length_min=LENGTH_MIN,
        length_max=LENGTH_MAX,
    )

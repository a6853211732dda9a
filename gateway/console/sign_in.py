"""Sign-in and sign-out: with an API key, a password, or through the identity provider; and the link for a password."""

import asyncio
import hmac
from dataclasses import asdict
from typing import Annotated

import structlog
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from itsdangerous import BadSignature, URLSafeTimedSerializer

from gateway.console.browser import (
    COOKIE,
    PATH,
    SIGN_IN_PATH,
    directory_of,
    forget,
    keep,
    own_path,
    read_texts,
    root_of,
    signed_in,
)
from gateway.console.forms import sentence
from gateway.console.renderer import page
from gateway.errors import RoleForbids, TooManyWrongKeys
from gateway.identity.audit import Actor
from gateway.identity.directory import Directory
from gateway.identity.oidc import Attempt, Claims, Provider
from gateway.identity.password_hash import LENGTH_MAX, LENGTH_MIN
from gateway.identity.passwords import PasswordLink
from gateway.identity.provider_answers import LoginRefused, ProviderDown
from gateway.identity.sign_in import sign_in
from runtime.errors import Conflict, KeyInvalid, NotFound, Overloaded, RequestInvalid, ServiceError

log = structlog.get_logger(__name__)

ATTEMPT_COOKIE = "millrace_attempt"
ATTEMPT_PATH = f"{PATH}/oidc"
ATTEMPT_S = 600
_USER_MAX = 80

router = APIRouter(prefix=PATH)


async def login_page(
    request: Request, status: int = 200, problem: str = "", way_back: str = PATH, user: str | None = None
) -> Response:
    """Return the sign-in page; `way_back` is the target after it. With `user`, `problem` concerns the password."""
    directory = directory_of(request)
    return page(
        "login.html",
        None,
        status,
        problem=problem,
        user=user,
        has_passwords=await asyncio.to_thread(directory.passwords.has_any),
        has_provider=directory.provider is not None,
        way_back=way_back,
    )


@router.get("/login")
async def show(request: Request, next: str = PATH) -> Response:  # noqa: A002 - as the address has it
    way_back = own_path(next)
    if await signed_in(request):
        return RedirectResponse(way_back, status_code=303)
    return await login_page(request, way_back=way_back)


@router.post("/login")
async def login(request: Request) -> Response:
    form = await read_texts(request)
    way_back = own_path(form.get("next", PATH))
    directory = directory_of(request)
    address = address_of(request)
    try:
        caller = await directory.gate.admit(form.get("key", ""), address)
    except KeyInvalid:
        return await login_page(request, 401, "Invalid API key.", way_back)
    except TooManyWrongKeys as error:
        answer = await login_page(request, 429, error.message, way_back)
        answer.headers["retry-after"] = str(error.retry_after_s)
        return answer
    return await open_session(request, caller.user_id, caller.key_id, way_back)


@router.post("/logout")
async def logout(request: Request) -> Response:
    """End the session itself, not only in this browser. Raises RoleForbids for another session's form."""
    form = await read_texts(request)
    text = request.cookies.get(COOKIE, "")
    sessions = directory_of(request).sessions
    if await signed_in(request):
        if not sessions.is_own_form(text, form.get("csrf", "")):
            raise RoleForbids(
                "This form belongs to another session. Open the console and sign out there.", param="csrf"
            )
        await asyncio.to_thread(sessions.close, text, address_of(request))
    response = RedirectResponse(SIGN_IN_PATH, status_code=303)
    forget(response, request, COOKIE)
    return response


@router.get("/oidc/start")
async def start(request: Request, next: str = PATH) -> Response:  # noqa: A002 - as the address has it
    """Redirect to the identity provider."""
    try:
        address, attempt = await _provider(request).begin(root_of(request) + f"{ATTEMPT_PATH}/callback")
    except LoginRefused as error:
        return await _refused(request, error)
    response = RedirectResponse(address, status_code=303)
    kept = _serializer(request).dumps({"attempt": asdict(attempt), "next": own_path(next)})
    keep(response, request, ATTEMPT_COOKIE, kept, ATTEMPT_S, ATTEMPT_PATH)
    return response


@router.get("/oidc/callback")
async def come_back(
    request: Request, code: str = "", state: str = "", error: str = "", iss: str | None = None
) -> Response:
    """Handle the return from the identity provider, with its answer about the user's identity."""
    directory = directory_of(request)
    try:
        attempt, way_back = _attempt(request, state)
        claims = await _claims(request, attempt, code, error, iss)
        user = await asyncio.to_thread(sign_in, directory.write, directory.settings, claims, address_of(request))
    except (LoginRefused, ServiceError) as refusal:
        return await _refused(request, refusal)
    await asyncio.to_thread(directory.keys.catch_up)  # The user's role may have changed.
    response = await open_session(request, user.user_id, None, way_back)
    forget(response, request, ATTEMPT_COOKIE, ATTEMPT_PATH)
    return response


async def _claims(request: Request, attempt: Attempt, code: str, error: str, issuer: str | None) -> Claims:
    """Raises LoginRefused."""
    provider = _provider(request)
    if error:
        raise LoginRefused("The identity provider did not sign you in. Try again.")
    # If the answer names its issuer, it must be the provider that was asked (RFC 9207).
    if issuer not in (None, directory_of(request).settings.oidc_issuer):
        raise LoginRefused("The answer came from a different identity provider. Try again.")
    if not code:
        raise LoginRefused("The identity provider sent no code. Try again.")
    return await provider.finish(attempt, code)


def _attempt(request: Request, state: str) -> tuple[Attempt, str]:
    """Return the attempt that this browser started, and its target path. Raises LoginRefused."""
    try:
        kept = _serializer(request).loads(request.cookies.get(ATTEMPT_COOKIE, ""), max_age=ATTEMPT_S)
        attempt, way_back = Attempt(**kept["attempt"]), own_path(kept["next"])
    except (BadSignature, TypeError, KeyError):
        raise LoginRefused("This sign-in was started in another browser, or has expired. Try again.") from None
    if not hmac.compare_digest(attempt.state.encode(), state.encode("utf-8", "replace")):
        raise LoginRefused("This answer belongs to another sign-in. Try again.")
    return attempt, way_back


async def open_session(request: Request, user_id: str, key_id: str | None, way_back: str) -> Response:
    """Open a session and redirect to `way_back`."""
    directory: Directory = directory_of(request)
    by = Actor(f"user:{user_id}", address_of(request))
    browser = request.headers.get("user-agent", "")
    text = await asyncio.to_thread(directory.sessions.open, user_id, by, key_id, browser)
    response = RedirectResponse(way_back, status_code=303)
    keep(response, request, COOKIE, text, int(directory.sessions.lasts_s))
    return response


async def _refused(request: Request, error: LoginRefused | ServiceError) -> Response:
    log.warning("sign-in refused", reason=str(error), address=address_of(request))
    return await login_page(request, 503 if isinstance(error, ProviderDown) else 403, str(error))


def _provider(request: Request) -> Provider:
    """Return the identity provider. Raises NotFound if none is configured."""
    provider = directory_of(request).provider
    if provider is None:
        raise NotFound("No identity provider is configured (identity.oidc_issuer). Sign in with a key.")
    return provider


def _serializer(request: Request) -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(directory_of(request).keys.session_secret, salt="sign-in attempt")


def address_of(request: Request) -> str:
    return request.client.host if request.client else ""


@router.post("/login/password")
async def login_with_password(request: Request) -> Response:
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
        return _welcome(None, token, error.message, 429 if isinstance(error, TooManyWrongKeys) else 404)
    return _welcome(link, token)


@router.post("/welcome")
async def choose(request: Request) -> Response:
    """Set the password and sign the user in."""
    form = await read_texts(request)
    token, gate, address = form.get("token", ""), directory_of(request).password_gate, address_of(request)
    try:
        link = await gate.link(token, address)
        problem = "The passwords do not match." if form.get("password") != form.get("again") else ""
        if problem:
            return _welcome(link, token, problem, 400)
        user = await gate.choose(token, form.get("password", ""), address)
    except RequestInvalid as error:
        return _welcome(link, token, sentence(error.message.removeprefix(f"{error.param}: ")), 400)
    except (NotFound, Conflict, Overloaded, TooManyWrongKeys) as error:
        status = {NotFound: 404, Conflict: 409, Overloaded: 503}.get(type(error), 429)
        return _welcome(None, token, error.message, status)
    return await open_session(request, user.user_id, None, PATH)


def _welcome(link: PasswordLink | None, token: str, problem: str = "", status: int = 200) -> Response:
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

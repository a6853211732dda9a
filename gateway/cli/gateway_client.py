"""Requests of commands to the gateway that runs on the same data directory."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote

from gateway.cli import output
from gateway.cli.command import RefusedByGateway
from gateway.settings import Settings
from runtime.data_folder import ADMIN_HEADER, DataFolder

if TYPE_CHECKING:
    import httpx

TIMEOUT_S = 30.0
BORROWED = "for one command: "
"""Name prefix of keys that are created for one command and revoked at its end."""
# The user waits for completion at the Tab key.
_PEEK_S = 3.0

# Statuses of rejections by a rule, a role, a balance or another owner's claim.
_REFUSED = (401, 402, 403, 409)
_WRONG = (400, 422)


def ask(
    settings: Settings,
    method: str,
    path: str,
    body: dict[str, Any] | None = None,
    *,
    headers: dict[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Any:
    """Return the running gateway's answer; end the command if none answers. `headers` replace the machine's token.

    Raises RefusedByGateway.
    """
    root, token = _found(settings)
    return send(method, root + path, headers or {ADMIN_HEADER: token}, body, is_own=True, timeout_s=timeout_s)


def send(
    method: str,
    url: str,
    headers: dict[str, str],
    body: dict[str, Any] | None = None,
    *,
    is_own: bool,
    timeout_s: float = TIMEOUT_S,
) -> Any:
    """Return a server's JSON answer; end the command if it does not answer. Raises RefusedByGateway.

    Requests to this machine's own gateway bypass environment proxies: one would see the token, and cannot reach this
    machine's loopback.
    """
    import httpx  # commands without requests start twice as fast without it

    try:
        response = httpx.request(method, url, headers=headers, json=body, timeout=timeout_s, trust_env=not is_own)
    except httpx.HTTPError as error:
        unreachable(url, error, is_own=is_own)
    if response.status_code != 200:
        refuse(response)
    return response.json()


def peek(running: dict[str, Any] | None, path: str, statuses: tuple[int, ...] = (200,)) -> Any:
    """Return the answer of a gateway's notice; None if there is no gateway or its status is unexpected."""
    import httpx

    if running is None:
        return None
    url = running["base_url"].removesuffix("/v1") + path
    headers = {ADMIN_HEADER: running["admin_token"]}
    try:
        answer = httpx.get(url, headers=headers, timeout=_PEEK_S, trust_env=False)
        return answer.json() if answer.status_code in statuses else None
    except (httpx.HTTPError, ValueError):
        return None


def lines(settings: Settings, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the objects of an answer sent line by line, without time limit; end the command if there is none."""
    import httpx
    import orjson

    root, token = _found(settings)
    patience = httpx.Timeout(TIMEOUT_S, read=None)
    try:
        with httpx.stream(
            "POST", root + path, headers={ADMIN_HEADER: token}, json=body, timeout=patience, trust_env=False
        ) as response:
            if response.status_code != 200:
                response.read()
                refuse(response)
            for line in response.iter_lines():
                yield orjson.loads(line)
    except httpx.HTTPError as error:
        unreachable(root + path, error, is_own=True)


def base_url(settings: Settings) -> str:
    """Return the URL of the running gateway's OpenAI API; end the command if none is running."""
    return f"{_found(settings)[0]}/v1"


@contextmanager
def borrowed_key(settings: Settings, purpose: str, user: str, *, lasts_s: int = 3600) -> Iterator[str]:
    """Yield a key of this user for one command, revoked at its end; if the command is killed, the key expires."""
    made = ask(
        settings, "POST", "/admin/keys", {"name": BORROWED + purpose, "user": user, "expires_in_s": lasts_s}
    )
    try:
        yield str(made["api_key"])
    finally:
        ask(settings, "DELETE", f"/admin/keys/{made['key_id']}")


def segment(name: str) -> str:
    """Return a name as a part of a path."""
    return quote(name, safe="")


def user_headers(key: str, once: str | None = None) -> dict[str, str]:
    """Return the headers of a user's request; `once` is the idempotency key of a write."""
    return {"authorization": f"Bearer {key}"} | ({"idempotency-key": once} if once else {})


def refuse(response: "httpx.Response") -> NoReturn:
    """Raises RefusedByGateway with the gateway's message, the field that is to blame, and the exit status."""
    status = response.status_code
    try:
        error = response.json()["error"]
        message, field = str(error["message"]), error.get("param")
    except (ValueError, KeyError, TypeError):
        message, field = f"the gateway answered {status}: {response.text[:500]}", None
    code = output.REFUSED if status in _REFUSED else output.WRONG_USAGE if status in _WRONG else output.FAILED
    raise RefusedByGateway(message, field, code)


def _found(settings: Settings) -> tuple[str, str]:
    """Return the root URL and the machine's token."""
    running = DataFolder(settings.data_dir).read_running()
    if running is None:
        output.fail(
            f"no gateway is running on {settings.data_dir}; start one with `millrace up`", output.UNREACHABLE
        )
    return running["base_url"].removesuffix("/v1"), running["admin_token"]


def unreachable(url: str, error: "httpx.HTTPError", *, is_own: bool) -> NoReturn:
    """End the command: the server did not answer."""
    remedy = "run `millrace doctor` to find the reason" if is_own else "check the address, or try again later"
    output.fail(f"{url} does not answer: {error}; {remedy}", output.UNREACHABLE)

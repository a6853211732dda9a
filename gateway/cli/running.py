"""The way from a command to the gateway that runs on the same data folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from gateway.cli import output
from gateway.data_folder import ADMIN_HEADER, DataFolder
from gateway.settings import Settings

if TYPE_CHECKING:
    import httpx

TIMEOUT_S = 30.0
BORROWED = "for one command: "
"""What the names of keys begin with that are made for a command and revoked at its end."""
# Somebody waits for it at the tabulator key.
_PEEK_S = 3.0

# What a rule, a role, a balance or another's claim stands against.
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
    """The running gateway's answer; ends the command when there is none. `headers` replace the machine's token."""
    import httpx  # Commands that ask no gateway start twice as fast without.

    root, token = _found(settings)
    url = root + path
    try:
        # Not by a proxy of the environment: it would get the token, and finds no way to this machine's loopback.
        response = httpx.request(
            method, url, headers=headers or {ADMIN_HEADER: token}, json=body, timeout=timeout_s, trust_env=False
        )
    except httpx.HTTPError as error:
        _unreachable(url, error)
    if response.status_code != 200:
        refuse(response)
    return response.json()


def peek(running: dict[str, Any] | None, path: str, statuses: tuple[int, ...] = (200,)) -> Any:
    """What the gateway of this notice says; None where there is none or it does not answer as it should."""
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
    """Objects of an answer that comes line by line, as long as it takes; ends the command when there is none."""
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
        _unreachable(root + path, error)


def base_url(settings: Settings) -> str:
    """Where the running gateway's OpenAI API is; ends the command when none runs."""
    return f"{_found(settings)[0]}/v1"


@contextmanager
def borrowed_key(settings: Settings, purpose: str, user: str, *, lasts_s: int = 3600) -> Iterator[str]:
    """A key of this person's for one command, revoked at its end; it ends by itself where that is killed."""
    made = ask(
        settings, "POST", "/admin/keys", {"name": BORROWED + purpose, "user": user, "expires_in_s": lasts_s}
    )
    try:
        yield str(made["api_key"])
    finally:
        ask(settings, "DELETE", f"/admin/keys/{made['key_id']}")


def as_person(key: str, once: str | None = None) -> dict[str, str]:
    """Headers of a question in somebody's name; `once` is what a write is called, so that it is done once."""
    return {"authorization": f"Bearer {key}"} | ({"idempotency-key": once} if once else {})


def refuse(response: "httpx.Response") -> NoReturn:
    """End the command with what the gateway said, and the status that goes with it."""
    status = response.status_code
    try:
        said = str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        said = f"the gateway answered {status}: {response.text[:500]}"
    code = output.REFUSED if status in _REFUSED else output.WRONG_USAGE if status in _WRONG else output.FAILED
    output.fail(said, code)


def _found(settings: Settings) -> tuple[str, str]:
    """Root of its addresses, and the machine's token."""
    running = DataFolder(settings.data_dir).read_running()
    if running is None:
        output.fail(f"no gateway runs on {settings.data_dir}; start one with `millrace up`", output.UNREACHABLE)
    return running["base_url"].removesuffix("/v1"), running["admin_token"]


def _unreachable(url: str, error: "httpx.HTTPError") -> NoReturn:
    output.fail(
        f"the gateway at {url} does not answer: {error}; `millrace doctor` looks for the reason",
        output.UNREACHABLE,
    )

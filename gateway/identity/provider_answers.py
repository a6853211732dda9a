"""Answers of an identity provider, bounded in time and size, and the errors if there is none."""

import re
from typing import Any

import orjson

ANSWER_TIMEOUT_S = 5.0
ANSWER_BYTES_MAX = 2**20

_CODE = re.compile(r"[a-z_]{1,40}")


class LoginRefused(Exception):
    """The sign-in failed; the message is for the user and says what to do."""


class ProviderDown(LoginRefused):
    """The identity provider does not answer, or not with a valid answer."""


async def fetch(
    method: str, url: str, form: dict[str, str] | None = None, headers: dict[str, str] | None = None
) -> dict[str, Any]:
    """Return a JSON object of the provider. Raises ProviderDown, and LoginRefused for its regular refusals."""
    import httpx

    try:
        async with (
            httpx.AsyncClient(timeout=ANSWER_TIMEOUT_S) as client,
            client.stream(method, url, data=form, headers=headers) as response,
        ):
            body = b""
            async for part in response.aiter_bytes():
                body += part
                if len(body) > ANSWER_BYTES_MAX:
                    raise ProviderDown("The identity provider's answer is too long.")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ProviderDown(f"The identity provider does not answer ({type(error).__name__}). Try again.") from None
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        found = None
    if response.status_code in (400, 401) and isinstance(found, dict) and _CODE.fullmatch(str(found.get("error"))):
        raise LoginRefused(f"The identity provider refused the sign-in ({found['error']}). Try again.")
    if response.status_code != 200 or not isinstance(found, dict):
        raise ProviderDown(f"The identity provider sent an invalid answer ({response.status_code}). Try again.")
    return found

"""Interprets a backend's error: which side caused it, and whether another backend may do better."""

import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn

import orjson

from gateway.errors import LaneBusy, LaneLimited, MessagesRefused
from runtime.errors import LaneBrokeOff, LaneFailed, LaneTimeout, RequestInvalid

_RETRY_AFTER_S_MAX = 86_400
_SAID_CHARS = 500
_CODE = re.compile("[A-Za-z0-9_.-]{1,64}")
# Statuses caused by the backend, not by the request: another candidate may do better.
_BACKEND_TO_BLAME = frozenset((401, 403, 404, 405, 408, 429))
# Server messages if a chat template raises an error: llama-server (500 or 400), vLLM (400), mlx-lm (404).
_TEMPLATE_RAISED = re.compile(
    rb"(?i)jinja exception|jinja template|templateerror|applying chat template|roles must alternate"
    rb"|system message must be|system role (is )?not supported|roles are supported|unexpected (message )?role"
)
_TEMPLATE_BYTES_MAX = 16 * 2**10
# The cloud worker's error codes for a provider that got the request and did not answer it properly.
_PERHAPS_WORKED_ON = frozenset(
    ("provider_broke_off", "provider_garbled", "provider_too_large", "provider_compressed")
)


def is_failure(status: int) -> bool:
    """Return whether a status is the backend's failure: neither an answer nor an error of the request.

    0: no status yet.
    """
    return status not in (0, 200) and (not 400 <= status < 500 or status in _BACKEND_TO_BLAME)


def check_messages(name: str, content: bytes) -> None:
    """Raises MessagesRefused if an error answer to a chat says that the chat template refused the messages."""
    if not _TEMPLATE_RAISED.search(content[:_TEMPLATE_BYTES_MAX]):
        return
    message, _ = _words(content)
    refused = MessagesRefused(
        f"the chat template of {name} refuses these messages", param="messages", code="invalid_value"
    )
    raise refused.quoting(f"{refused.message}: {message}" if message else refused.message)


def failure_of(name: str, status: int, content: bytes, retry_after: bytes | None) -> LaneFailed:
    """Return the exception for an error answer."""
    message, code = _words(content)
    error = _failure(f"{name} answered {status}" + _in_log(code), status, code, retry_after)
    return error.quoting(f"{name} answered {status}" + (f": {message}" if message else ""))


def _failure(message: str, status: int, code: str | None, retry_after: bytes | None) -> LaneFailed:
    retry_after_s = _retry_after_s(retry_after.decode("latin-1") if retry_after else None)
    if status == 429:
        return LaneLimited(message, code=code, retry_after_s=retry_after_s, asks_for_pause=True)
    if status == 503:
        return LaneBusy(message, code=code, retry_after_s=retry_after_s, asks_for_pause=True)
    if status in (408, 504):
        return LaneTimeout(message, code=code)
    return LaneBrokeOff(message, code=code) if code in _PERHAPS_WORKED_ON else LaneFailed(message, code=code)


def raise_error(name: str, error: Any) -> NoReturn:
    """Raise an error that came in place of an answer under status 200.

    Raises RequestInvalid if the request caused it, otherwise LaneFailed.
    """
    message = error.get("message") if isinstance(error, dict) else error
    message = message[:_SAID_CHARS] if isinstance(message, str) else "an error without a message"
    code, kind = (error.get("code"), error.get("type")) if isinstance(error, dict) else (None, None)
    is_refusal = isinstance(code, int) and 400 <= code < 500 and not is_failure(code)
    word = code if isinstance(code, str) else None
    if is_refusal or kind == "invalid_request_error":
        raise RequestInvalid(f"{name} refused the request" + _in_log(word), code=word).quoting(message)
    failure = LaneFailed(f"{name} answered with an error" + _in_log(word), code=word)
    raise failure.quoting(f"{name} answered with an error: {message}")


def _in_log(code: str | None) -> str:
    """Return the error code for the log, if it is a known form: other text of a backend may be the caller's."""
    return f" ({code})" if code and _CODE.fullmatch(code) else ""


def _words(content: bytes) -> tuple[str | None, str | None]:
    """Return the message and the code of an error body in OpenAI's shape; some servers send only a message."""
    try:
        error = orjson.loads(content).get("error")
    except (orjson.JSONDecodeError, AttributeError):
        return None, None
    said, code = (error.get("message"), error.get("code")) if isinstance(error, dict) else (error, None)
    return (
        said[:_SAID_CHARS] if isinstance(said, str) else None,
        code if isinstance(code, str) else None,
    )


def _retry_after_s(header: str | None) -> int | None:
    """Return the header's seconds, or the seconds until its date; None if it is invalid."""
    if header is None:
        return None
    try:
        wait_s = float(header)
    except ValueError:
        try:
            wait_s = (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):
            return None
    return math.ceil(min(max(wait_s, 1), _RETRY_AFTER_S_MAX)) if math.isfinite(wait_s) else None

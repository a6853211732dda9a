"""Translates an upstream's error, in OpenAI's shape or in none, to another API's."""

from collections.abc import Callable
from typing import Any

import orjson

from runtime.http.api_error import ApiError

_BYTES_MAX = 64 * 2**10
_SAID_CHARS = 2000


class RefusalWriter:
    """Buffers the error body of an answer that is not a 200, and translates it to another API's format."""

    content_type = "application/json"
    keeps_calls = False

    def __init__(self, status: int, error_body: Callable[[ApiError], bytes]) -> None:
        self._status = status
        self._error_body = error_body
        self._kept = bytearray()
        self.broken: ApiError | None = None

    def feed(self, chunk: bytes) -> bytes:
        if len(self._kept) < _BYTES_MAX:
            self._kept += chunk
        return b""

    def end(self) -> bytes:
        try:
            body = orjson.loads(self._kept)
        except orjson.JSONDecodeError:
            body = None
        error = body.get("error") if isinstance(body, dict) else None
        return self._error_body(upstream_error(error, self._status))

    def fail(self, error: ApiError) -> bytes:
        return self._error_body(error)


def upstream_error(error: Any, status: int = 502) -> ApiError:
    """Return an upstream's `error` value, of any type, as an ApiError."""
    fields = error if isinstance(error, dict) else {"message": error}
    message, code, param = (_text(fields.get(name)) for name in ("message", "code", "param"))
    kind = _text(fields.get("type")) or ("invalid_request_error" if 400 <= status < 500 else "upstream_error")
    return ApiError(status, message or f"The backend answered {status}.", kind, param, code)


def _text(value: Any) -> str | None:
    return value[:_SAID_CHARS] if isinstance(value, str) and value else None

"""Errors as HTTP, in OpenAI's shape: the one table from what happened to status, type and code.

The official SDKs choose their exception class by status alone: 400 BadRequest, 401 Authentication, 403
PermissionDenied, 404 NotFound, 409 Conflict, 429 RateLimit, 5xx InternalServer (and they try 409, 429 and 5xx
again by themselves).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from runtime.errors import (
    BodyTooLarge,
    BudgetExceeded,
    Conflict,
    HeadersTooLarge,
    HostUnknown,
    KeyInvalid,
    LaneBrokeOff,
    LaneFailed,
    LaneTimeout,
    MethodNotAllowed,
    NotFound,
    Overloaded,
    QueueFull,
    RateLimited,
    RequestInvalid,
)
from runtime.redaction import without_internals


@dataclass(frozen=True, slots=True)
class ApiError:
    """The error body that the client gets."""

    status: int
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    headers: tuple[tuple[bytes, bytes], ...] = field(default=())

    def body(self) -> bytes:
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def event(self) -> bytes:
        """The same as the last event of a stream that had begun."""
        return b"data: " + self.body() + b"\n\n"


@dataclass(frozen=True, slots=True)
class Row:
    """The response to the client for one class of errors."""

    status: int
    type: str
    code: str | None = None
    param: str | None = None
    message: str | None = None
    """Replaces the error's own words, if those are for us alone."""
    has_own_code: bool = True
    """True if a `code` of the error has priority over the row's."""


# The first class that an error is an instance of decides; its own code and param go before the row's.
TABLE: dict[type[Exception], Row] = {
    RequestInvalid: Row(400, "invalid_request_error"),
    BodyTooLarge: Row(413, "invalid_request_error", "body_too_large"),
    HeadersTooLarge: Row(431, "invalid_request_error", "headers_too_large"),
    KeyInvalid: Row(401, "authentication_error", "invalid_api_key"),
    NotFound: Row(404, "invalid_request_error", "not_found"),
    MethodNotAllowed: Row(405, "invalid_request_error", "method_not_allowed"),
    HostUnknown: Row(421, "invalid_request_error", "host_unknown"),
    Conflict: Row(409, "invalid_request_error", "conflict"),
    BudgetExceeded: Row(402, "budget_exceeded", "budget_exceeded"),
    RateLimited: Row(429, "rate_limit_error", "rate_limit_exceeded"),
    Overloaded: Row(503, "overloaded_error", "overloaded"),
    QueueFull: Row(429, "rate_limit_error", "queue_full"),
    LaneTimeout: Row(504, "upstream_error", "upstream_timeout"),
    LaneBrokeOff: Row(502, "upstream_error", "upstream_broke_off"),
    LaneFailed: Row(502, "upstream_error", "upstream_failed"),
}


# Errors of this status and above may quote a backend, a machine or a provider.
_MACHINES_WORDS = 429


def to_api_error(error: Exception, table: Mapping[type[Exception], Row] = TABLE) -> ApiError:
    """Return the error as HTTP. An error that is not in the table reveals nothing of what is inside."""
    for kind, row in table.items():
        if isinstance(error, kind):
            code = (getattr(error, "code", None) if row.has_own_code else None) or row.code
            message = row.message or getattr(error, "message", None) or str(error)
            if row.status >= _MACHINES_WORDS:
                message = without_internals(message)
            param = getattr(error, "param", None) or row.param
            retry_after_s = getattr(error, "retry_after_s", None) or (1 if row.status == 503 else 0)
            headers = ((b"retry-after", b"%d" % retry_after_s),) if retry_after_s else ()
            headers += getattr(error, "headers", ())
            return ApiError(row.status, message, row.type, param, code, headers)
    return ApiError(
        500, "Internal error of the gateway. Its log has the reason under this request's ID.", "server_error"
    )

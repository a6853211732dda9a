"""Our errors as HTTP: one table from what happened to status, type and code, in OpenAI's shape.

The official SDKs choose their exception class by status alone: 400 BadRequest, 401 Authentication, 403
PermissionDenied, 404 NotFound, 409 Conflict, 429 RateLimit, 5xx InternalServer (and they try 409, 429 and 5xx
again by themselves).
"""

import math
from dataclasses import dataclass, field
from typing import Self

import msgspec
from sqlalchemy.exc import InterfaceError, InternalError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from accounting import errors as books
from accounting.payments import errors as payments
from cluster import errors as cluster
from gateway.redaction import without_internals

DATABASE_AWAY = (OperationalError, InterfaceError, InternalError, PoolTimeout)
"""Exceptions of SQLAlchemy if the database does not or cannot answer."""


class GatewayError(Exception):
    """Root of what the gateway itself refuses; `param` names the request's field when one is to blame."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code

    def quoting(self, message: str) -> Self:
        """With a message for the caller alone, since it has a backend's own words: they may repeat the prompt.

        Logs write `str(error)`, which stays as it was. Paths and names of an operator's machine are removed.
        """
        self.message = without_internals(message)
        return self


class RequestInvalid(GatewayError):
    """The body is not what the API asks for."""


class MessagesRefused(RequestInvalid):
    """A backend's chat template raised an error on these messages; it may take them in another shape."""


class PaymentRefused(RequestInvalid):
    """Stripe refused permanently."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="stripe_refused")


class BodyTooLarge(GatewayError):
    @classmethod
    def of_request(cls, bytes_max: int) -> "BodyTooLarge":
        return cls(f"The body is larger than {bytes_max} bytes, this gateway's limit. Send less text.")


class HeadersTooLarge(GatewayError):
    pass


class KeyInvalid(GatewayError):
    pass


class ModelUnknown(GatewayError):
    pass


class NotFound(GatewayError):
    pass


class MethodNotAllowed(GatewayError):
    pass


class HostUnknown(GatewayError):
    """The request was meant for another host, by a name that is none of this gateway's."""


class RoleForbids(GatewayError):
    """The key is valid, and its person may not do this."""


class Conflict(GatewayError):
    """The request conflicts with existing data, or with data that must stay."""


class KeyInUse(Conflict):
    """A request with the same Idempotency-Key is being answered; worth asking again after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message, param="Idempotency-Key", code="idempotency_key_in_use")
        self.retry_after_s = retry_after_s


class TooManyWrongKeys(GatewayError):
    """Too many keys that are not valid came from one address."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RateLimited(GatewayError):
    """A limit is reached; `retry_after_s` is None where no wait would help. `headers` say how far it goes."""

    headers: tuple[tuple[bytes, bytes], ...] = ()

    def __init__(self, message: str, retry_after_s: int | None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TooManyHangUps(RateLimited):
    """The payer's callers cancelled too many requests before the paid backend began to answer."""

    def __init__(self, wait_s: float) -> None:
        message = (
            "Too many requests were left before their answers had begun, and nobody pays for their prompts. Wait "
            "for the first event of an answer before you close the connection, or use a model of own machines."
        )
        super().__init__(message, math.ceil(wait_s))


class BudgetExceeded(RateLimited):
    """A limit on money is reached."""


class BudgetUnavailable(RateLimited):
    """The remaining amount of a spending limit is unknown, so nothing is spent."""


class PolicyForbids(GatewayError):
    """A rule stands against the only way to serve this; the message names the rule and its owner."""


class FeatureUnsupported(GatewayError):
    """No lane that may serve this model can do what the request asks for."""


class Overloaded(GatewayError):
    """Too much is running; worth trying again after `retry_after_s`."""

    retry_after_s = 1


class QueueFull(GatewayError):
    """No more may wait for a backend, or no slot came free in time; worth trying again after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlinePassed(GatewayError):
    """No first token came within the time that the request allows."""


class GuestsNotNow(GatewayError):
    """No preemptible request is accepted now: local requests run, or no slot is free. Try another gateway."""


class Preempted(GatewayError):
    """A local request needs the machine, so the preemptible request's answer ends here."""


class StorageUnavailable(GatewayError):
    """Data cannot be stored: the data folder's disk is full, read-only or gone."""


class LaneFailed(GatewayError):
    """A backend did not answer, or answered nonsense, before its first byte. `kind` is what metrics call it."""

    kind = "failed"


class LaneUnreachable(LaneFailed):
    """No connection: the backend has seen nothing of the request."""

    kind = "unreachable"


class LaneBrokeOff(LaneFailed):
    """The request was sent and no answer came: the backend may have worked on it, and its owner may charge."""

    kind = "broke_off"


class LaneTimeout(LaneBrokeOff):
    kind = "timeout"


class LaneBusy(LaneFailed):
    """The backend is well and has no room just now; worth trying again after `retry_after_s`, if it said so.

    `asks_for_pause`: the backend itself answered so. It is left alone with this model for a while.
    """

    kind = "busy"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        retry_after_s: int | None = None,
        asks_for_pause: bool = False,
    ) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s
        self.asks_for_pause = asks_for_pause or retry_after_s is not None


class LaneLimited(LaneBusy):
    """The backend has a rate limit and we have reached it."""

    kind = "rate_limited"


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
class _Row:
    status: int
    type: str
    code: str | None = None
    param: str | None = None
    message: str | None = None
    """Said instead of the error's own words, where those are for us alone."""


# Errors of the ledger name accounts, amounts and files; only the log shows them.
_NO_CREDIT = (
    "There are not enough credits for this. Lower max_tokens, or have an admin add credits. "
    "An admin of this gateway needs no credits, only a spending limit: `millrace budget set person:ID USD`."
)
_FROZEN = "The payments of this account are under review, and paid requests are blocked. Ask an admin."
_BROKEN = "Paid requests are stopped until an admin has checked the ledger. Own machines answer as before."
_LEDGER_BUSY = "The ledger is overloaded. Try again shortly."
_DATABASE_AWAY = "The database does not answer or cannot be written. Try again; if this lasts, ask an admin."
_NOT_STORED = "This gateway cannot store anything now; nothing was kept. Try again; if this lasts, ask an admin."
_LEDGER_AWAY = "The ledger does not answer, so nothing is spent. Try again shortly."
_KEY_REUSED = "This key was used before, for another request. Use a new key for a new request."
_NO_ACCOUNT = "The ledger cannot have an account for this user. Ask an admin."
_NOT_COUNTED = "This gateway cannot count the text of this model. Ask an admin."

# The first class that an error is an instance of decides; its own code and param go before the row's.
_TABLE: dict[type[Exception], _Row] = {
    RequestInvalid: _Row(400, "invalid_request_error"),
    BodyTooLarge: _Row(413, "invalid_request_error", "body_too_large"),
    HeadersTooLarge: _Row(431, "invalid_request_error", "headers_too_large"),
    KeyInvalid: _Row(401, "authentication_error", "invalid_api_key"),
    ModelUnknown: _Row(404, "invalid_request_error", "model_not_found"),
    NotFound: _Row(404, "invalid_request_error", "not_found"),
    MethodNotAllowed: _Row(405, "invalid_request_error", "method_not_allowed"),
    HostUnknown: _Row(421, "invalid_request_error", "host_unknown"),
    RoleForbids: _Row(403, "permission_error", "role_forbids"),
    Conflict: _Row(409, "invalid_request_error", "conflict"),
    TooManyWrongKeys: _Row(429, "rate_limit_error", "too_many_wrong_keys"),
    TooManyHangUps: _Row(429, "rate_limit_error", "too_many_hang_ups"),
    BudgetExceeded: _Row(402, "budget_exceeded", "budget_exceeded"),
    BudgetUnavailable: _Row(503, "server_error", "budget_unavailable"),
    RateLimited: _Row(429, "rate_limit_error", "rate_limit_exceeded"),
    PolicyForbids: _Row(403, "permission_error", "policy_forbids"),
    FeatureUnsupported: _Row(400, "invalid_request_error", "unsupported_feature"),
    Overloaded: _Row(503, "overloaded_error", "overloaded"),
    GuestsNotNow: _Row(503, "overloaded_error", "guests_not_now"),
    Preempted: _Row(503, "overloaded_error", "preempted"),
    QueueFull: _Row(429, "rate_limit_error", "queue_full"),
    DeadlinePassed: _Row(504, "upstream_error", "deadline_passed", "millrace.deadline_s"),
    StorageUnavailable: _Row(503, "server_error", "storage_unavailable", message=_NOT_STORED),
    LaneTimeout: _Row(504, "upstream_error", "upstream_timeout"),
    LaneBrokeOff: _Row(502, "upstream_error", "upstream_broke_off"),
    LaneLimited: _Row(429, "rate_limit_error", "upstream_rate_limited"),
    LaneBusy: _Row(503, "overloaded_error", "upstream_busy"),
    LaneFailed: _Row(502, "upstream_error", "upstream_failed"),
    books.InsufficientCredit: _Row(402, "insufficient_credit", "insufficient_credit", message=_NO_CREDIT),
    payments.PayerFrozen: _Row(403, "permission_error", "payments_frozen", message=_FROZEN),
    books.BooksBroken: _Row(503, "server_error", "ledger_broken", message=_BROKEN),
    books.LedgerBusy: _Row(503, "overloaded_error", "ledger_busy", message=_LEDGER_BUSY),
    books.IdempotencyConflict: _Row(409, "invalid_request_error", "idempotency_key_reused", message=_KEY_REUSED),
    books.PostingInvalid: _Row(400, "invalid_request_error"),
    books.DatabaseFailing: _Row(503, "server_error", "database_unavailable", message=_DATABASE_AWAY),
    books.BooksUnavailable: _Row(503, "server_error", "ledger_unavailable", message=_LEDGER_AWAY),
    # Of all values that determine a hold's size, only the caller's limit can be too large.
    books.AmountInvalid: _Row(400, "invalid_request_error", "invalid_value", "max_tokens"),
    books.AccountUnknown: _Row(403, "permission_error", "account_unknown", message=_NO_ACCOUNT),
    books.PriceUnknown: _Row(503, "server_error", "price_unknown"),
    books.TokenizerMismatch: _Row(503, "server_error", "tokenizer_unusable", message=_NOT_COUNTED),
    books.TextNotCounted: _Row(503, "server_error", "tokenizer_unusable", message=_NOT_COUNTED),
    books.HoldNotFound: _Row(404, "invalid_request_error", "hold_not_found"),
    books.HoldExpired: _Row(409, "invalid_request_error", "hold_expired"),
    books.AlreadyResolved: _Row(409, "invalid_request_error", "hold_resolved"),
    books.UsageBooked: _Row(409, "invalid_request_error", "usage_booked"),
    # Among them PostingRefused, which has the database's words.
    books.PostingDenied: _Row(
        409, "invalid_request_error", "posting_refused", message="The books refuse this; nothing was booked."
    ),
    payments.PaymentInvalid: _Row(400, "invalid_request_error", "invalid_value"),
    payments.PaymentNotFound: _Row(404, "invalid_request_error", "not_found"),
    payments.WebhookRefused: _Row(400, "invalid_request_error", "webhook_refused"),
    payments.StripeRefused: _Row(400, "invalid_request_error", "stripe_refused"),
    payments.StripeUnavailable: _Row(503, "server_error", "stripe_unavailable"),
    # Among them WrongMode and PaymentMismatch: what Stripe has is not what the books are about.
    payments.PaymentError: _Row(409, "invalid_request_error", "payment_conflict"),
    **dict.fromkeys(
        DATABASE_AWAY,
        _Row(503, "server_error", "database_unavailable", message=_DATABASE_AWAY),
    ),
    cluster.RequestInvalid: _Row(400, "invalid_request_error"),
    cluster.ContextLengthExceeded: _Row(400, "invalid_request_error"),
    cluster.ClusterBusy: _Row(503, "overloaded_error"),
    cluster.ClusterUnavailable: _Row(503, "overloaded_error"),
    cluster.StageLost: _Row(502, "upstream_error"),
    cluster.GenerationError: _Row(500, "server_error"),
}
# Errors of this status and above may quote a backend, a machine or a provider.
_MACHINES_WORDS = 429
EXPECTED = tuple(_TABLE)
"""Exceptions that may intentionally end a request; any other is a defect."""


def to_api_error(error: Exception) -> ApiError:
    """The one place where an error becomes HTTP. Unforeseen ones say nothing of what is inside."""
    for kind, row in _TABLE.items():
        if isinstance(error, kind):
            # SQLAlchemy's own codes name pages of its documentation.
            code = row.code if isinstance(error, SQLAlchemyError) else getattr(error, "code", None) or row.code
            message = row.message or getattr(error, "message", None) or str(error)
            if row.status >= _MACHINES_WORDS:
                message = without_internals(message)
            param = getattr(error, "param", None) or row.param
            retry_after_s = getattr(error, "retry_after_s", None) or (1 if row.status == 503 else 0)
            headers = ((b"retry-after", b"%d" % retry_after_s),) if retry_after_s else ()
            headers += getattr(error, "headers", ())
            return ApiError(row.status, message, row.type, param, code, headers)
    return ApiError(500, "The gateway made a mistake; the log has it under this request's id.", "server_error")

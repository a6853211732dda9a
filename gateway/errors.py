"""The gateway's errors, and the table that maps every error of a request to its answer."""

import math

from sqlalchemy.exc import InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from accounting import errors as ledger
from accounting.payments import errors as payments
from cluster import errors as cluster
from runtime.errors import (
    Conflict,
    LaneFailed,
    LaneTimeout,
    RateLimited,
    RequestInvalid,
    ServiceError,
)
from runtime.http import api_error
from runtime.http.api_error import TABLE, ApiError, Row

DATABASE_AWAY = (OperationalError, InterfaceError, InternalError, PoolTimeout)
"""Exceptions of SQLAlchemy if the database does not or cannot answer."""


class MessagesRefused(RequestInvalid):
    """A backend's chat template rejected these messages; it may accept them in another shape."""


class PaymentRefused(RequestInvalid):
    """Stripe refused permanently."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="stripe_refused")


class ModelUnknown(ServiceError):
    pass


class RoleForbids(ServiceError):
    """The key is valid, but its user may not do this."""


class KeyInUse(Conflict):
    """A request with the same Idempotency-Key is being answered; retry after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message, param="Idempotency-Key", code="idempotency_key_in_use")
        self.retry_after_s = retry_after_s


class TooManyWrongKeys(ServiceError):
    """Too many keys that are not valid came from one address."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TooManyHangUps(RateLimited):
    """The payer's callers cancelled too many requests before the paid backend began to answer."""

    def __init__(self, wait_s: float) -> None:
        message = (
            "Too many requests were cancelled before their answers began, so their prompts were not paid. Wait "
            "for the first event of an answer before you close the connection, or use a model on local machines."
        )
        super().__init__(message, math.ceil(wait_s))


class BudgetUnavailable(RateLimited):
    """The remaining amount of a spending limit is unknown, so nothing is spent."""


class PolicyForbids(ServiceError):
    """A rule forbids the only way to serve the request; the message names the rule and its owner."""


class FeatureUnsupported(ServiceError):
    """No lane that may serve this model has the required features."""


class DeadlinePassed(ServiceError):
    """No first token came within the time that the request allows."""


class PreemptibleNotNow(ServiceError):
    """No preemptible request is accepted now: local requests run, or no slot is free. Try another gateway."""


class Preempted(ServiceError):
    """A local request needs the machine, so the preemptible request's answer ends here."""


class StorageUnavailable(ServiceError):
    """Data cannot be stored: the data directory's disk is full, read-only or gone."""


class LaneUnreachable(LaneFailed):
    """No connection: the backend did not receive the request."""

    kind = "unreachable"


class FirstByteLate(LaneTimeout):
    """No first byte came in the time that the prediction allows for it."""


class LaneBusy(LaneFailed):
    """The backend is healthy but has no room; retry after `retry_after_s`, if given.

    `asks_for_pause`: the backend itself answered so. It gets no requests for this model for a while.
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
    """The backend's rate limit is reached."""

    kind = "rate_limited"


# Errors of the ledger name accounts, amounts and files; only the log shows them.
_NO_CREDIT = (
    "There are not enough credits for this. Lower max_tokens, or have an admin add credits. "
    "An admin of this gateway needs no credits, only a spending limit: `millrace budget set user:ID USD`."
)
_FROZEN = "The payments of this account are under review, and paid requests are blocked. Ask an admin."
_BROKEN = "Paid requests are stopped until an admin has checked the ledger. Local machines still answer."
_LEDGER_BUSY = "The ledger is overloaded. Try again shortly."
_DATABASE_AWAY = "The database does not answer or cannot be written. Try again; if this lasts, ask an admin."
_NOT_STORED = "This gateway cannot store data now; nothing was stored. Try again; if this lasts, ask an admin."
_LEDGER_AWAY = "The ledger does not answer, so nothing is spent. Try again shortly."
_KEY_REUSED = "This key was used before, for another request. Use a new key for a new request."
_NO_ACCOUNT = "The ledger cannot have an account for this user. Ask an admin."
_NOT_COUNTED = "This gateway cannot count the text of this model. Ask an admin."

# The first matching class decides; the error's own code and param take precedence over the row's.
_TABLE: dict[type[Exception], Row] = {
    ModelUnknown: Row(404, "invalid_request_error", "model_not_found"),
    RoleForbids: Row(403, "permission_error", "role_forbids"),
    TooManyWrongKeys: Row(429, "rate_limit_error", "too_many_wrong_keys"),
    TooManyHangUps: Row(429, "rate_limit_error", "too_many_hang_ups"),
    BudgetUnavailable: Row(503, "server_error", "budget_unavailable"),
    PolicyForbids: Row(403, "permission_error", "policy_forbids"),
    FeatureUnsupported: Row(400, "invalid_request_error", "unsupported_feature"),
    PreemptibleNotNow: Row(503, "overloaded_error", "preemptible_not_now"),
    Preempted: Row(503, "overloaded_error", "preempted"),
    DeadlinePassed: Row(504, "upstream_error", "deadline_passed", "millrace.deadline_s"),
    StorageUnavailable: Row(503, "server_error", "storage_unavailable", message=_NOT_STORED),
    LaneLimited: Row(429, "rate_limit_error", "upstream_rate_limited"),
    LaneBusy: Row(503, "overloaded_error", "upstream_busy"),
    ledger.InsufficientCredit: Row(402, "insufficient_credit", "insufficient_credit", message=_NO_CREDIT),
    payments.PayerFrozen: Row(403, "permission_error", "payments_frozen", message=_FROZEN),
    ledger.LedgerBroken: Row(503, "server_error", "ledger_broken", message=_BROKEN),
    ledger.LedgerBusy: Row(503, "overloaded_error", "ledger_busy", message=_LEDGER_BUSY),
    ledger.IdempotencyConflict: Row(409, "invalid_request_error", "idempotency_key_reused", message=_KEY_REUSED),
    ledger.PostingInvalid: Row(400, "invalid_request_error"),
    ledger.DatabaseFailing: Row(503, "server_error", "database_unavailable", message=_DATABASE_AWAY),
    ledger.LedgerUnavailable: Row(503, "server_error", "ledger_unavailable", message=_LEDGER_AWAY),
    # Of the values that determine a hold's size, only the caller's limit can be too large.
    ledger.AmountInvalid: Row(400, "invalid_request_error", "invalid_value", "max_tokens"),
    ledger.AccountUnknown: Row(403, "permission_error", "account_unknown", message=_NO_ACCOUNT),
    ledger.PriceUnknown: Row(503, "server_error", "price_unknown"),
    ledger.TokenizerMismatch: Row(503, "server_error", "tokenizer_unusable", message=_NOT_COUNTED),
    ledger.TextNotCounted: Row(503, "server_error", "tokenizer_unusable", message=_NOT_COUNTED),
    ledger.HoldNotFound: Row(404, "invalid_request_error", "hold_not_found"),
    ledger.HoldExpired: Row(409, "invalid_request_error", "hold_expired"),
    ledger.AlreadyResolved: Row(409, "invalid_request_error", "hold_resolved"),
    ledger.UsageBooked: Row(409, "invalid_request_error", "usage_booked"),
    # This includes PostingRefused, which has the database's message.
    ledger.PostingDenied: Row(
        409, "invalid_request_error", "posting_refused", message="The ledger rejected this; nothing was posted."
    ),
    payments.PaymentInvalid: Row(400, "invalid_request_error", "invalid_value"),
    payments.PaymentNotFound: Row(404, "invalid_request_error", "not_found"),
    payments.WebhookRefused: Row(400, "invalid_request_error", "webhook_refused"),
    payments.StripeRefused: Row(400, "invalid_request_error", "stripe_refused"),
    payments.StripeUnavailable: Row(503, "server_error", "stripe_unavailable"),
    # This includes WrongMode and PaymentMismatch: Stripe's data does not match the ledger.
    payments.PaymentError: Row(409, "invalid_request_error", "payment_conflict"),
    **dict.fromkeys(
        DATABASE_AWAY,
        # SQLAlchemy's own codes name pages of its documentation.
        Row(503, "server_error", "database_unavailable", message=_DATABASE_AWAY, has_own_code=False),
    ),
    cluster.RequestInvalid: Row(400, "invalid_request_error"),
    cluster.ContextLengthExceeded: Row(400, "invalid_request_error"),
    cluster.ClusterBusy: Row(503, "overloaded_error"),
    cluster.ClusterUnavailable: Row(503, "overloaded_error"),
    cluster.StageLost: Row(502, "upstream_error"),
    cluster.GenerationError: Row(500, "server_error"),
    **TABLE,
}
EXPECTED = tuple(_TABLE)
"""Exceptions that may end a request intentionally; any other is a defect."""


def to_api_error(error: Exception) -> ApiError:
    """Return the error as the client gets it; an error that is not in the table reveals no internals."""
    return api_error.to_api_error(error, _TABLE)

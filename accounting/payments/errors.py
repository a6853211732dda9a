"""Errors between the ledger and Stripe. None of them knows HTTP.

PaymentError
├── PaymentInvalid       the request is not on offer; the message names the field and the remedy
├── PayerFrozen          a payment of this user is disputed: purchases stop until an admin has examined it
├── PaymentNotFound      there is no such top-up, refund, payout or account here
├── WebhookRefused       a message is not from Stripe, not for this gateway, or not of this time
├── WrongMode            the ledger holds payments of Stripe's other mode
├── WrongAccount         the ledger holds payments of another account at Stripe
├── PaymentMismatch      Stripe's object is not what our own row asked for: nothing is booked from it
├── StripeRefused        Stripe refused for good: the call had no effect and will have none
└── StripeUnavailable    the outcome of a call is unknown: the same key is sent again later
"""

from accounting.errors import LedgerError


class PaymentError(LedgerError):
    """Base class of payment errors."""


class PaymentInvalid(PaymentError):
    """Raised when a request is not on offer. The message names the remedy."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class PayerFrozen(PaymentError):
    """Raised for a user with a disputed payment: purchases stop until an admin has examined it."""

    def __init__(self, user_id: str, why: str) -> None:
        super().__init__(f"The payments of {user_id} are under review: {why}.")


class PaymentNotFound(PaymentError):
    """Raised when there is no such object here."""


class WebhookRefused(PaymentError):
    """Raised for a message that is not from Stripe, not for this gateway, or not of this time."""


class WrongMode(PaymentError):
    """Raised when the ledger holds payments of Stripe's other mode."""

    def __init__(self, *, was_live: bool) -> None:
        was, now = ("live", "test") if was_live else ("test", "live")
        super().__init__(f"this ledger holds payments of {was} mode, and the key is of {now} mode")


class WrongAccount(PaymentError):
    """Raised when the ledger holds payments of another account at Stripe."""

    def __init__(self, kept: str, found: str) -> None:
        super().__init__(f"this ledger holds payments of account {kept}, and the key is of {found}")


class PaymentMismatch(PaymentError):
    """Raised when Stripe's object is not what our own row asked for."""


class StripeRefused(PaymentError):
    """Raised when Stripe refused for good. `code` is Stripe's word for the reason."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class StripeUnavailable(PaymentError):
    """Raised when the outcome of a call is unknown: the same key is sent again later.

    `is_kept` tells that Stripe keeps this failure as the key's answer, so sending it again changes nothing.
    """

    def __init__(self, message: str, *, is_kept: bool = False) -> None:
        super().__init__(message)
        self.is_kept = is_kept

"""What can go wrong between the books and Stripe; none of it knows HTTP.

PaymentError
├── PaymentInvalid       what was asked for is not on offer; the message names the field and the remedy
├── PayerFrozen          a payment of this user is disputed: nothing is bought until somebody looked into it
├── PaymentNotFound      there is no such top-up, refund, payout or account here
├── WebhookRefused       a message that Stripe did not send, or not to us, or not now
├── WrongMode            the books hold payments of Stripe's other mode
├── WrongAccount         the books hold payments of another account at Stripe
├── PaymentMismatch      Stripe's object is not what our own row asked for: nothing is booked from it
├── StripeRefused        Stripe said no for good: the call had no effect and will have none
└── StripeUnavailable    nobody knows yet what became of a call: the same key is sent again later
"""

from accounting.errors import LedgerError


class PaymentError(LedgerError):
    """Root of what goes wrong with payments."""


class PaymentInvalid(PaymentError):
    """What was asked for is not on offer; the message names the remedy."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class PayerFrozen(PaymentError):
    """A payment of this user is disputed: nothing is bought until somebody looked into it."""

    def __init__(self, user_id: str, why: str) -> None:
        super().__init__(f"The payments of {user_id} are being looked into: {why}.")


class PaymentNotFound(PaymentError):
    """There is no such thing here."""


class WebhookRefused(PaymentError):
    """A message that Stripe did not send, or not to us, or not now."""


class WrongMode(PaymentError):
    """The books hold payments of Stripe's other mode."""

    def __init__(self, *, was_live: bool) -> None:
        was, now = ("live", "test") if was_live else ("test", "live")
        super().__init__(f"these books hold payments of {was} mode, and the key is of {now} mode")


class WrongAccount(PaymentError):
    """The books hold payments of another account at Stripe."""

    def __init__(self, kept: str, found: str) -> None:
        super().__init__(f"these books hold payments of account {kept}, and the key is of {found}")


class PaymentMismatch(PaymentError):
    """Stripe's object is not what our own row asked for."""


class StripeRefused(PaymentError):
    """Stripe said no for good. `code` is Stripe's word for the reason."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class StripeUnavailable(PaymentError):
    """Nobody knows yet what became of a call: the same key is sent again later.

    `is_kept` tells that Stripe keeps this failure as the key's answer, so that asking again brings nothing else.
    """

    def __init__(self, message: str, *, is_kept: bool = False) -> None:
        super().__init__(message)
        self.is_kept = is_kept

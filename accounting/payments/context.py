"""Hold what every part of payments works with, made once and passed to each."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from accounting.payments.calls import TAG, Calls
from accounting.payments.client import Object, Stripe
from accounting.payments.errors import PaymentMismatch
from accounting.payments.ledger import Ledger, OpenSession
from accounting.payments.terms import PaymentTerms


def _ledger_is_sound() -> None:
    return None


@dataclass(frozen=True, slots=True)
class PaymentsContext:
    ledger: Ledger
    calls: Calls
    write: OpenSession
    terms: PaymentTerms = field(default_factory=PaymentTerms)
    clock_ns: Callable[[], int] = time.time_ns
    stale_s: float = 60.0
    """A transaction that stands still for this long is checked again automatically, in seconds."""
    check: Callable[[], None] = _ledger_is_sound
    """Raises LedgerBroken while a rule of the ledger is broken: no money is then sent out or charged automatically.
    """

    @property
    def stripe(self) -> Stripe:
        return self.calls.stripe

    @property
    def read(self) -> OpenSession:
        return self.ledger.read

    @property
    def stale_before_ns(self) -> int:
        return self.clock_ns() - int(self.stale_s * 1e9)


def own_id(made: Object, prefix: str) -> str | None:
    """Return our own id of an object that one of our calls made at Stripe; None for other objects."""
    tag = str(made["metadata"].get(TAG, ""))
    return tag.removeprefix(prefix) if tag.startswith(prefix) else None


def check_currency(made: Object) -> None:
    """Raises PaymentMismatch if an object of Stripe is not in US dollars."""
    if made["currency"] != "usd":
        raise PaymentMismatch(f"{made['id']} is in {made['currency']}; the ledger is in usd")


def check_mode(made: Object, *, is_live: bool) -> None:
    """Raises PaymentMismatch if an object is of Stripe's other mode, live for a test key or the reverse."""
    if made["livemode"] != is_live:
        raise PaymentMismatch(f"{made['id']} and our key are of different modes")

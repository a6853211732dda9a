"""Errors of the ledger, one class per meaning. None of them knows HTTP.

LedgerError
├── AmountInvalid            no event may carry this amount, price or count
├── AccountUnknown           the chart of accounts does not have this code
├── PriceUnknown             no price for this model on this lane
├── TokenizerMismatch        a tokenizer file does not have the pinned SHA-256
├── TextNotCounted           the tokenizer fails on this text: count its characters instead
├── PostingInvalid           the event contradicts itself, or no database can store it
├── PostingDenied            the ledger refused the event, and nothing of it was booked
│   ├── InsufficientCredit   the account has less than the event needs, open holds included
│   ├── HoldNotFound         there is no such hold, or it is not the one that the caller expects
│   ├── HoldExpired          the reaper released the hold before the capture came
│   ├── AlreadyResolved      the hold was captured or released before
│   ├── IdempotencyConflict  another request used the key before
│   ├── UsageBooked          requests of the event already have a usage row
│   └── PostingRefused       the database has another objection, which the message repeats
└── LedgerUnavailable         the event was not answered; the same key may be sent again
    ├── LedgerBusy           the queue of waiting events is full
    ├── PosterStopped        the writer has stopped, or is stopping and takes no new events
    ├── LedgerBroken          a rule of the ledger is broken; spending stops until it is repaired
    └── DatabaseFailing      the database refused or vanished, and bounded retries did not help
"""


class LedgerError(Exception):
    """Base class of every error that this package raises on purpose."""


class AmountInvalid(LedgerError):
    """Raised for an amount, price or count that no event may carry."""


class AccountUnknown(LedgerError):
    """Raised for a code that the chart of accounts does not have."""

    def __init__(self, code: str) -> None:
        super().__init__(f"the chart of accounts has no code {code!r}")
        self.account = code


class PriceUnknown(LedgerError):
    """Raised when this model has no price on this lane."""

    def __init__(self, lane: str, model: str) -> None:
        super().__init__(f"model {model!r} has no price on the {lane} lane")
        self.lane = lane
        self.model = model


class TokenizerMismatch(LedgerError):
    """Raised for a tokenizer file whose SHA-256 is not the pinned one."""


class TextNotCounted(LedgerError):
    """Raised when the tokenizer fails on a text. Callers count its characters instead."""


class PostingInvalid(LedgerError):
    """Raised for an event that contradicts itself or that no database can store."""


class PostingDenied(LedgerError):
    """Raised when the ledger refuses an event. Nothing of the event was booked."""


class InsufficientCredit(PostingDenied):
    """Raised when an account has less than the event needs, open holds included. Both amounts are in its unit."""

    def __init__(self, account: str, needed_nano: int, available_nano: int) -> None:
        super().__init__(f"{account} has {available_nano} nano available, but {needed_nano} nano are needed")
        self.account = account
        self.needed_nano = needed_nano
        self.available_nano = available_nano


class HoldNotFound(PostingDenied):
    """Raised when there is no such hold, or it is not the one that the caller expects."""


class HoldExpired(PostingDenied):
    """Raised when the reaper released the hold before the capture came."""


class AlreadyResolved(PostingDenied):
    """Raised when the hold was captured or released before."""


class IdempotencyConflict(PostingDenied):
    """Raised when another request used the key before."""

    def __init__(self, idem_key: str) -> None:
        super().__init__(f"key {idem_key!r} belongs to another request")
        self.idem_key = idem_key


class UsageBooked(PostingDenied):
    """Raised when some requests of the event already have a usage row.

    The event's other requests are not booked.
    """

    def __init__(self, request_ids: frozenset[str]) -> None:
        super().__init__(f"{len(request_ids)} requests are booked already, {min(request_ids)!r} among them")
        self.request_ids = request_ids


class PostingRefused(PostingDenied):
    """Raised when the database has another objection, which the message repeats."""


class LedgerUnavailable(LedgerError):
    """Raised when the event was not answered. The caller may send the same key again."""


class LedgerBusy(LedgerUnavailable):
    """Raised when the queue of waiting events is full."""


class PosterStopped(LedgerUnavailable):
    """Raised when the writer has stopped, or is stopping and takes no new events."""


class LedgerBroken(LedgerUnavailable):
    """Raised while a rule of the ledger is broken: spending stops until it is repaired.

    `rule` is its short name.
    """

    def __init__(self, rule: str, meaning: str) -> None:
        super().__init__(f"the ledger breaks the rule {rule} ({meaning}): spending stops until it is repaired")
        self.rule = rule


class DatabaseFailing(LedgerUnavailable):
    """Raised when the database refused or vanished and bounded retries did not help.

    The event may have been booked all the same. Sending the same key again returns the answer.
    """

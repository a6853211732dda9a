"""What can go wrong with money, one class per meaning; none of them knows HTTP.

LedgerError
├── AmountInvalid            an amount, price or count that no event may carry
├── AccountUnknown           a code that is not in the chart of accounts
├── PriceUnknown             no price for this model on this lane
├── TokenizerMismatch        a tokenizer file whose SHA-256 is not the pinned one
├── TextNotCounted           the tokenizer fails at this text: its characters are its count
├── PostingInvalid           an event that contradicts itself or that no database can hold
├── PostingDenied            the books said no, and nothing of the event was booked
│   ├── InsufficientCredit   the account has less than the event needs, holds counted
│   ├── HoldNotFound         there is no such hold, or it is another one than the caller believes
│   ├── HoldExpired          the reaper released the hold before the capture came
│   ├── AlreadyResolved      the hold was captured or released before
│   ├── IdempotencyConflict  the key was used before, for another request
│   ├── UsageBooked          requests of the event have their usage row already
│   └── PostingRefused       the database has another objection, which the message repeats
└── BooksUnavailable         the event was not answered; the same key may be sent again
    ├── LedgerBusy           more events wait than the queue may hold
    ├── PosterStopped        the writer has stopped, or stops and takes nothing new
    ├── BooksBroken          a rule of the books is broken, and nothing is spent until it is mended
    └── DatabaseFailing      the database refused or vanished, and bounded retries did not help
"""


class LedgerError(Exception):
    """Root of everything this package raises on purpose."""


class AmountInvalid(LedgerError):
    """An amount, price or count that no event may carry."""


class AccountUnknown(LedgerError):
    """A code that is not in the chart of accounts."""

    def __init__(self, code: str) -> None:
        super().__init__(f"no account may be called {code!r}")
        self.account = code


class PriceUnknown(LedgerError):
    """No price for this model on this lane."""

    def __init__(self, lane: str, model: str) -> None:
        super().__init__(f"no price is known for model {model!r} on the {lane} lane")
        self.lane = lane
        self.model = model


class TokenizerMismatch(LedgerError):
    """A tokenizer file whose SHA-256 is not the pinned one."""


class TextNotCounted(LedgerError):
    """The tokenizer fails at this text: its characters are its count."""


class PostingInvalid(LedgerError):
    """An event that contradicts itself or that no database can hold."""


class PostingDenied(LedgerError):
    """The books said no, and nothing of the event was booked."""


class InsufficientCredit(PostingDenied):
    """The account has less than the event needs, holds counted; both amounts in the account's unit."""

    def __init__(self, account: str, needed_nano: int, available_nano: int) -> None:
        super().__init__(f"{account} has {available_nano} nano available, {needed_nano} nano are needed")
        self.account = account
        self.needed_nano = needed_nano
        self.available_nano = available_nano


class HoldNotFound(PostingDenied):
    """There is no such hold, or it is another one than the caller believes."""


class HoldExpired(PostingDenied):
    """The reaper released the hold before the capture came."""


class AlreadyResolved(PostingDenied):
    """The hold was captured or released before."""


class IdempotencyConflict(PostingDenied):
    """The key was used before, for another request."""

    def __init__(self, idem_key: str) -> None:
        super().__init__(f"key {idem_key!r} belongs to another request")
        self.idem_key = idem_key


class UsageBooked(PostingDenied):
    """Requests of the event have their usage row already: they are booked, the others of the event are not."""

    def __init__(self, request_ids: frozenset[str]) -> None:
        super().__init__(f"{len(request_ids)} requests are booked already, {min(request_ids)!r} among them")
        self.request_ids = request_ids


class PostingRefused(PostingDenied):
    """The database has another objection, which the message repeats."""


class BooksUnavailable(LedgerError):
    """The event was not answered; the same key may be sent again."""


class LedgerBusy(BooksUnavailable):
    """More events wait than the queue may hold."""


class PosterStopped(BooksUnavailable):
    """The writer has stopped, or stops and takes nothing new."""


class BooksBroken(BooksUnavailable):
    """A rule of the books is broken, and nothing is spent until it is mended; `rule` is its short name."""

    def __init__(self, rule: str, meaning: str) -> None:
        super().__init__(f"the books break the rule {rule} ({meaning}): nothing is spent until it is mended")
        self.rule = rule


class DatabaseFailing(BooksUnavailable):
    """The database refused or vanished, and bounded retries did not help.

    The event may have been booked all the same: asking again with the same key tells.
    """

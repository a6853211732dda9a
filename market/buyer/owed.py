"""The buyer's report of its requests' costs, repeated until the gateway confirms that the ledger has them."""

import msgspec

OWED_AT_ONCE = 64


class Owed(msgspec.Struct, frozen=True):
    """One finished request: what its jobs cost by our own receipts, in nano-USD.

    `died` counts the jobs during which the buyer's process died. The next process signed for what was written down
    by then; the caller may have received more. `seller` is one of its sellers; an audit has only this one.
    """

    id: str
    amount_nano: int
    began_ms: int
    died: int
    seller: str


class OwedPage(msgspec.Struct, frozen=True):
    """A page of at most `OWED_AT_ONCE` requests, ordered by id."""

    requests: tuple[Owed, ...] = ()

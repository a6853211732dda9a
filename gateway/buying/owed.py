"""What the buyer tells of what its requests came to, until the gateway says that it is in the books."""

import msgspec

OWED_AT_ONCE = 64


class Owed(msgspec.Struct, frozen=True):
    """One request that nobody serves now: what its jobs come to by our own receipts, in nano-USD.

    `died` counts its jobs in whose middle the buyer's process died: the next one has signed for what was written
    down by then, and more may have reached the caller.
    """

    id: str
    amount_nano: int
    began_ms: int
    died: int = 0


class OwedPage(msgspec.Struct, frozen=True):
    """In the order of their ids; at most `OWED_AT_ONCE`."""

    requests: tuple[Owed, ...] = ()

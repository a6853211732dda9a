"""Finding out what another gateway lacks without sending it all: hashes of buckets, then the unequal ones."""

import hashlib
from collections.abc import Sequence

from market.errors import RecordInvalid
from market.records.book import Book, Slot
from market.records.envelope import Record

BUCKETS = 64


def summary(book: Book) -> tuple[str, ...]:
    """A SHA-256 for each bucket of records: equal books have equal ones, one difference changes one of them."""
    buckets: list[list[str]] = [[] for _ in range(BUCKETS)]
    for slot, record in book.slots.items():
        buckets[_bucket_of(slot)].append(record.digest)
    return tuple(hashlib.sha256("".join(sorted(digests)).encode()).hexdigest() for digests in buckets)


def differing(book: Book, theirs: Sequence[str]) -> list[Record]:
    """The records of every bucket where another gateway's summary differs: what it may lack.

    Raises:
        RecordInvalid: the summary has another number of buckets.
    """
    if len(theirs) != BUCKETS:
        raise RecordInvalid("summary", f"has {len(theirs)} hashes, and {BUCKETS} are expected")
    unequal = {n for n, mine in enumerate(summary(book)) if mine != theirs[n]}
    return [record for slot, record in book.slots.items() if _bucket_of(slot) in unequal]


def _bucket_of(slot: Slot) -> int:
    return hashlib.sha256("\n".join(slot).encode()).digest()[0] % BUCKETS

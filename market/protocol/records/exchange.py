"""Find out what another gateway lacks without sending everything: compare hashes of buckets, then send unequal
ones.
"""

import hashlib
from collections.abc import Sequence

from market.errors import RecordInvalid
from market.protocol.records.book import Book, Slot
from market.protocol.records.envelope import Record

BUCKETS = 64


def summary(book: Book) -> tuple[str, ...]:
    """Return a SHA-256 for each bucket of records.

    Equal books have equal hashes; one difference changes one of them.
    """
    buckets: list[list[str]] = [[] for _ in range(BUCKETS)]
    for slot, record in book.slots.items():
        buckets[_bucket_of(slot)].append(record.digest)
    return tuple(hashlib.sha256("".join(sorted(digests)).encode()).hexdigest() for digests in buckets)


def differing(book: Book, other_summary: Sequence[str]) -> list[Record]:
    """Return the records of every bucket with another hash in another gateway's summary: what it may lack.

    Raises:
        RecordInvalid: the summary has another number of buckets.
    """
    if len(other_summary) != BUCKETS:
        raise RecordInvalid("summary", f"has {len(other_summary)} hashes instead of {BUCKETS}")
    unequal = {n for n, mine in enumerate(summary(book)) if mine != other_summary[n]}
    return [record for slot, record in book.slots.items() if _bucket_of(slot) in unequal]


def _bucket_of(slot: Slot) -> int:
    return hashlib.sha256("\n".join(slot).encode()).digest()[0] % BUCKETS

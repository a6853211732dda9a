"""Collect the records that a gateway knows, and merge those of two gateways: the highest revision stays.

`merge` is a join: in any order, any number of times and along any path, all gateways end up with the same records.
So it uses no clock and trusts no one. Expired records, those by keys without authority, and superseded ones are
left out only when the book is read (`alive`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from market.protocol.records.envelope import LIFETIME_MAX_MS, Kind, Record
from market.protocol.records.key_status import StandingOf

NAMES_MAX = 64
"""Most records of one kind by one key: those with the first names stay."""
AHEAD_MS = 60_000
"""A record's time may be at most this far ahead of the reader's clock."""


class Slot(NamedTuple):
    """The slot for which records compete: only one stays.

    The key is part of it, so only an identity's own keys supersede its statements.
    """

    kind: Kind
    issuer: str
    key: str
    name: str


@dataclass(frozen=True, slots=True)
class Book:
    """The newest record of each slot. It is never changed, only replaced."""

    slots: Mapping[Slot, Record] = field(default_factory=dict)


def book_of(records: Iterable[Record]) -> Book:
    """Return a book with these records, up to the limits.

    The bodies must be valid: an invalid record would hide the one that it supersedes.
    """
    newest: dict[Slot, Record] = {}
    for record in records:
        slot = slot_of(record)
        newest[slot] = max(record, newest.get(slot, record), key=_order)
    return Book({slot: newest[slot] for slot in _with_room(newest)})


def merge(one: Book, other: Book) -> Book:
    """Return everything that either of them knows: commutative, associative, idempotent."""
    return book_of((*one.slots.values(), *other.slots.values()))


def alive(book: Book, now_ms: int, standing: StandingOf) -> list[Record]:
    """Return the valid records: the newest one for each issuer's name, unless it has expired.

    `now_ms` is a clock on which gateways agree to within `AHEAD_MS`. `standing` returns how far an identity's key
    is trusted. If the newest record of a name has expired, an older one does not come back.
    """
    newest: dict[tuple[str, str, str], Record] = {}
    for slot, record in book.slots.items():
        if standing(slot.issuer, slot.key) == "current":
            place = (slot.kind, slot.issuer, slot.name)
            newest[place] = max(record, newest.get(place, record), key=_order)
    return [record for record in newest.values() if _is_valid(record, now_ms)]


def forget(book: Book, now_ms: int) -> Book:
    """Return the book without records that expired so long ago that no older one can still be valid.

    This holds for issuers whose higher revisions were made later; others harm only their own records.
    """
    return book_of(record for record in book.slots.values() if not _is_forgotten(record, now_ms))


def slot_of(record: Record) -> Slot:
    return Slot(record.kind, record.issuer, record.key, record.name)


def _order(record: Record) -> tuple[int, str, bytes]:
    # If an issuer signs two records of one revision, every gateway must still keep the same one. The same holds
    # for
    # # two signatures over the same members, which have one digest.
    return record.revision, record.digest, record.raw


def _with_room(slots: Iterable[Slot]) -> list[Slot]:
    """Limit slots by name alone: with age or revision, the result would depend on the order of merges."""
    groups: dict[tuple[str, str, str], list[Slot]] = {}
    for slot in slots:
        groups.setdefault(slot[:3], []).append(slot)
    return [slot for group in groups.values() for slot in sorted(group)[:NAMES_MAX]]


def _is_valid(record: Record, now_ms: int) -> bool:
    begun = record.made_ms <= now_ms + AHEAD_MS
    return begun and (record.expires_ms is None or now_ms < record.expires_ms)


def _is_forgotten(record: Record, now_ms: int) -> bool:
    longest_ms = LIFETIME_MAX_MS[record.kind]
    return longest_ms is not None and record.expires_ms is not None and record.expires_ms + longest_ms < now_ms

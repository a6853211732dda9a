"""Which records a gateway knows, and how what two gateways know becomes one: the highest revision stays.

`merge` is a join: in whatever order, however often and over whatever detours gateways tell each other, all of them
come to know the same. It therefore asks no clock and believes nobody; what has expired, what was said with a key
that may no longer speak, and what was superseded is left out only where the book is read (`alive`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from market.records.envelope import LIFETIME_MAX_MS, Kind, Record
from market.records.standing import StandingOf

NAMES_MAX = 64
"""How many records of one kind one key may have here: those with the first names stay."""
AHEAD_MS = 60_000
"""How far ahead of the reader's clock a record may have been made."""


class Slot(NamedTuple):
    """What competes for one place. The key is part of it: nobody else can supersede what an identity said."""

    kind: Kind
    issuer: str
    key: str
    name: str


@dataclass(frozen=True, slots=True)
class Book:
    """The newest record of each slot; never changed, only replaced."""

    slots: Mapping[Slot, Record] = field(default_factory=dict)


def book_of(records: Iterable[Record]) -> Book:
    """A book with these records, as far as they have room.

    Their bodies must have been read before: a record that says nothing would hide the one that it supersedes.
    """
    newest: dict[Slot, Record] = {}
    for record in records:
        slot = slot_of(record)
        newest[slot] = max(record, newest.get(slot, record), key=_order)
    return Book({slot: newest[slot] for slot in _with_room(newest)})


def merge(one: Book, other: Book) -> Book:
    """Everything that either of them knows: commutative, associative, idempotent."""
    return book_of((*one.slots.values(), *other.slots.values()))


def alive(book: Book, now_ms: int, standing: StandingOf) -> list[Record]:
    """The records that count now, the newest of every issuer's name, if it has not expired.

    `now_ms` is a clock that gateways agree about to within `AHEAD_MS`; `standing` says what a key of an identity
    is worth. A name whose newest record has expired has none: an older one does not come back.
    """
    newest: dict[tuple[str, str, str], Record] = {}
    for slot, record in book.slots.items():
        if standing(slot.issuer, slot.key) == "current":
            place = (slot.kind, slot.issuer, slot.name)
            newest[place] = max(record, newest.get(place, record), key=_order)
    return [record for record in newest.values() if _is_valid(record, now_ms)]


def forget(book: Book, now_ms: int) -> Book:
    """The book without what has been expired so long that nothing older can still be valid.

    That holds for issuers whose higher revisions were made later; others harm their own records only.
    """
    return book_of(record for record in book.slots.values() if not _is_forgotten(record, now_ms))


def slot_of(record: Record) -> Slot:
    return Slot(record.kind, record.issuer, record.key, record.name)


def _order(record: Record) -> tuple[int, str, bytes]:
    # Two records of one revision are the issuer's fault; everybody must still keep the same one. So are two
    # signatures over the same members, which have one digest.
    return record.revision, record.digest, record.raw


def _with_room(slots: Iterable[Slot]) -> list[Slot]:
    """By name alone: were it by age or revision, it would depend on the order in which books are merged."""
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

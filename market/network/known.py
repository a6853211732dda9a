"""The records that this gateway knows, in memory and without a clock, with bounds on what others can make it keep.

Statements about keys are kept if they are connected to the identity; listings are kept if the key that signed them
is current. Admission depends on what is known, not on the order of arrival. So gateways that keep exchanging
records end up with the same.
"""

from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass

from market.errors import MarketError
from market.network.room import OWN, HeldRecords, RecordBounds, Sources, fits, room_for
from market.protocol.audits.findings import read_findings
from market.protocol.identity.connected import connected
from market.protocol.identity.lineage import Identities
from market.protocol.identity.statements import check_statement
from market.protocol.listings.listing import read_listing
from market.protocol.records.book import AHEAD_MS, Book, book_of, forget
from market.protocol.records.envelope import Kind, Record
from market.protocol.records.key_status import Standing

STATEMENTS: tuple[Kind, ...] = ("revocation", "founding", "rotation")
"""The kinds of statements, in the order in which they are sent."""
_SPOKEN: tuple[Kind, ...] = ("listing", "findings")
"""Kinds that count only while the key that signed them is current."""
_EXCHANGED: tuple[Kind, ...] = (*STATEMENTS, *_SPOKEN)


@dataclass(frozen=True, slots=True)
class RecordChange:
    """Records that were added and removed."""

    taken: tuple[Record, ...] = ()
    dropped: tuple[Record, ...] = ()


def check_received(record: Record, now_ms: int, *, allows_loopback: bool) -> None:
    """Check what can be checked of a received record without knowing others.

    Raises:
        MarketError: its kind is not exchanged, it is invalid, or it is from the future.
    """
    if record.kind not in _EXCHANGED:
        raise MarketError(f"a {record.kind} is not exchanged")
    check_statement(record)
    if record.kind == "listing":
        read_listing(record, allows_loopback=allows_loopback)
    elif record.kind == "findings":
        read_findings(record)
    if record.made_ms > now_ms + AHEAD_MS:
        raise MarketError(f"the {record.kind} is from the future")


class KnownRecords:
    """Not thread-safe.

    Args:
        always: identities that always have room: our own, trusted ones and a marketplace's sellers. May change.
    """

    def __init__(self, sources: Sources, bounds: RecordBounds, always: Container[str] = ()) -> None:
        self._sources = sources
        self._bounds = bounds
        self._always = always
        self._records: dict[str, Book] = {}
        self._held: dict[str, HeldRecords] = {}
        self._identities: dict[str, Identities] = {}
        self._raws: set[bytes] = set()
        # Records of each source's bounded share, and each issuer's source and number of them.
        self._shares: Counter[str] = Counter()
        self._counted: dict[str, tuple[str, int]] = {}

    @property
    def book(self) -> Book:
        return Book({slot: record for book in self._records.values() for slot, record in book.slots.items()})

    def has(self, raw: bytes) -> bool:
        """Return whether this very record is known; different bytes must be read before anything is believed."""
        return raw in self._raws

    def standing(self, identity: str, key: str) -> Standing:
        return self._identities.get(identity, _NO_STATEMENTS).standing(identity, key)

    def statements_of(self, identity: str) -> list[Record]:
        """Return the identity's statements about its keys, revocations first."""
        book = self._records.get(identity, Book())
        return [each for kind in STATEMENTS for each in book.slots.values() if each.kind == kind]

    def take(self, records: Iterable[Record], source: str, now_ms: int) -> RecordChange:
        """Add those records from `source` that have room; the records must have passed `check_received`."""
        by_issuer: dict[str, list[Record]] = {}
        for record in records:
            by_issuer.setdefault(record.issuer, []).append(record)
        taken: list[Record] = []
        dropped: list[Record] = []
        for issuer, received in by_issuer.items():
            change = self._take_one(issuer, received, source, now_ms)
            taken += change.taken
            dropped += change.dropped
        return RecordChange(tuple(taken), tuple(dropped))

    def sweep(self, now_ms: int) -> RecordChange:
        """Forget records that expired long ago."""
        dropped: list[Record] = []
        for issuer in list(self._records):
            swept = self._replace(issuer, forget(self._records[issuer], now_ms), self._held[issuer].source)
            dropped += swept.dropped
        return RecordChange((), tuple(dropped))

    def _take_one(self, issuer: str, received: list[Record], source: str, now_ms: int) -> RecordChange:
        before = list(self._records.get(issuer, Book()).slots.values())
        fitting = self._fitting(issuer, [*before, *received], now_ms)
        place = self._place(issuer, source, fitting)
        if place is None and before:
            # A known issuer's revocation needs no room: without it the revoked key would stay trusted.
            revoking = [each for each in received if each.kind == "revocation"]
            fitting = self._fitting(issuer, [*before, *revoking], now_ms)
            place = self._held[issuer].source, []
        if place is None:
            return RecordChange()
        believed, leaving = place
        gone = [record for each in leaving for record in self._replace(each, Book(), "").dropped]
        change = self._replace(issuer, fitting, believed)
        return RecordChange(change.taken, (*change.dropped, *gone))

    def _place(self, issuer: str, source: str, book: Book) -> tuple[str, list[str]] | None:
        """Return whose share an issuer's book uses, and which issuers must leave for it; None if there is
        no room.
        """
        place = self._held.get(issuer)
        rank = self._sources.rank
        believed = source if place is None or rank(source) > rank(place.source) else place.source
        is_no_more = place and place.source == believed and len(book.slots) <= place.records
        if is_no_more or believed == OWN or issuer in self._always:
            return believed, []
        needed = _held(book, believed)
        if fits(needed, self._shares_but(issuer), self._sources, self._bounds):
            return believed, []
        others = {each: held for each, held in self._held.items() if each != issuer and each not in self._always}
        leaving = room_for(needed, others, self._sources, self._bounds)
        return None if leaving is None else (believed, leaving)

    def _shares_but(self, issuer: str) -> Counter[str]:
        source, records = self._counted.get(issuer, ("", 0))
        return self._shares - Counter({source: records})

    def _fitting(self, issuer: str, records: list[Record], now_ms: int) -> Book:
        """Return those records of an issuer that can matter."""
        statements = connected(issuer, [each for each in records if each.kind in STATEMENTS])
        standing = Identities(statements).standing
        spoken = [e for e in records if e.kind in _SPOKEN and standing(issuer, e.key) == "current"]
        dated = forget(book_of(spoken), now_ms).slots
        most = {"listing": self._bounds.listings_per_issuer, "findings": self._bounds.findings_per_issuer}
        slots = [slot for kind in _SPOKEN for slot in sorted(s for s in dated if s.kind == kind)[: most[kind]]]
        return book_of([*statements, *(dated[slot] for slot in slots)])

    def _replace(self, issuer: str, book: Book, source: str) -> RecordChange:
        before = self._records.get(issuer, Book())
        old = {each.digest: each for each in before.slots.values()}
        new = {each.digest: each for each in book.slots.values()}
        self._count(issuer, source, len(new))
        if new:
            self._records[issuer] = book
            self._held[issuer] = _held(book, source)
            statements = [each for each in new.values() if each.kind in STATEMENTS]
            self._identities[issuer] = Identities(statements)
        elif issuer in self._records:
            del self._records[issuer], self._held[issuer], self._identities[issuer]
        self._raws -= {each.raw for each in old.values()}
        self._raws |= {each.raw for each in new.values()}
        came, went = new.keys() - old.keys(), old.keys() - new.keys()
        return RecordChange(tuple(new[each] for each in came), tuple(old[each] for each in went))

    def _count(self, issuer: str, source: str, records: int) -> None:
        before, had = self._counted.pop(issuer, ("", 0))
        self._shares[before] -= had
        if self._shares[before] <= 0:
            del self._shares[before]
        if records and issuer not in self._always:
            self._counted[issuer] = source, records
            self._shares[source] += records


def _held(book: Book, source: str) -> HeldRecords:
    kinds = {slot.kind for slot in book.slots}
    return HeldRecords(source, len(book.slots), "listing" in kinds, "revocation" in kinds)


_NO_STATEMENTS = Identities()

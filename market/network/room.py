"""Limits on others' records, and the order in which they go: no source can displace another's.

An issuer's records count for the source that sent it first. Our own records and those of trusted identities always
have room. Unknown sources share one part evenly, so that many of them gain no more than one would.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

OWN = "own"
"""The source of this gateway's own records."""


@dataclass(frozen=True, slots=True)
class RecordBounds:
    """Numbers of records, at about 4 KB of memory each. Revocations of issuers known here come on top."""

    trusted: int = 16_384
    peer: int = 2048
    stranger: int = 128
    strangers: int = 2048
    listings_per_issuer: int = 32
    findings_per_issuer: int = 16


@dataclass(frozen=True, slots=True)
class Sources:
    """Sources named by the owner: marketplaces are `trusted`, others with whom records are exchanged are `peers`."""

    trusted: Collection[str] = ()
    peers: Collection[str] = ()

    def rank(self, source: str) -> int:
        """Return the trust in a source, higher is more; unknown sources have 0."""
        if source == OWN:
            return 3
        if any(source == each.rstrip("/") for each in self.trusted):
            return 2
        return int(any(source == each.rstrip("/") for each in self.peers))


@dataclass(frozen=True, slots=True)
class HeldRecords:
    """An issuer's source, its number of records, and whether some of them are of these kinds."""

    source: str
    records: int
    has_offers: bool
    has_revocations: bool


def fits(needed: HeldRecords, shares: Mapping[str, int], sources: Sources, bounds: RecordBounds) -> bool:
    """Return whether there is room without dropping an issuer; `shares` are the others' records by source."""
    rank = sources.rank(needed.source)
    if rank == sources.rank(OWN):
        return True
    share = shares.get(needed.source, 0) + needed.records
    if rank > 0:
        return share <= (bounds.peer, bounds.trusted)[rank - 1]
    together = sum(each for source, each in shares.items() if sources.rank(source) == 0) + needed.records
    return share <= bounds.stranger and together <= bounds.strangers


def room_for(
    needed: HeldRecords, held: dict[str, HeldRecords], sources: Sources, bounds: RecordBounds
) -> list[str] | None:
    """Return which issuers to drop so that `needed` has room; None if it has none.

    `held` are the other issuers in order of arrival, without those that always have room. The latest go first; an
    issuer that has revoked a key never goes.
    """
    rank = sources.rank(needed.source)
    if rank == sources.rank(OWN):
        return []
    limit = (bounds.stranger, bounds.peer, bounds.trusted)[rank]
    own = {issuer: each for issuer, each in held.items() if each.source == needed.source}
    leaving = _without_offers(own, _count(own.values()) + needed.records - limit, needed)
    if leaving is None or rank > 0:
        return leaving
    strangers = {
        issuer: each for issuer, each in held.items() if sources.rank(each.source) == 0 and issuer not in leaving
    }
    over = _count(strangers.values()) + needed.records - bounds.strangers
    return leaving if over <= 0 else _from_largest(needed, over, strangers, leaving)


def _count(held: Iterable[HeldRecords]) -> int:
    return sum(each.records for each in held)


def _without_offers(own: dict[str, HeldRecords], over: int, needed: HeldRecords) -> list[str] | None:
    """Let only issuers with offers displace those without.

    Otherwise new issuers could displace others endlessly.
    """
    leaving = []
    for issuer, each in reversed(own.items()):
        if over > 0 and needed.has_offers and not each.has_offers and not each.has_revocations:
            leaving.append(issuer)
            over -= each.records
    return leaving if over <= 0 else None


def _from_largest(
    needed: HeldRecords, over: int, strangers: dict[str, HeldRecords], leaving: list[str]
) -> list[str] | None:
    """Take room from the largest unknown source, down to what the new issuer's source will have, and no
    further.
    """
    shares: Counter[str] = Counter()
    for each in strangers.values():
        shares[each.source] += each.records
    share_then = shares[needed.source] + needed.records
    remaining = dict(strangers)
    while over > 0:
        largest, share = shares.most_common(1)[0] if shares else ("", 0)
        candidates = (i for i, e in reversed(remaining.items()) if e.source == largest and not e.has_revocations)
        issuer = next(candidates, "")
        if not issuer or largest == needed.source or share - remaining[issuer].records < share_then:
            return None
        records = remaining.pop(issuer).records
        shares[largest] -= records
        over -= records
        leaving.append(issuer)
    return leaving

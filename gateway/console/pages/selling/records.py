"""Reads the agent's files while the agent writes them: its listings, its sales, audit findings.

The agent is a separate process; both may read each other's files in the market folder. Methods take
milliseconds.
"""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import structlog

from accounting.proofs.signing_key import SigningKeyUnusable
from market.errors import IdentityInvalid, MarketError
from market.network.identity import OwnIdentity
from market.network.room import OWN
from market.protocol.audits.findings import Findings, read_findings
from market.protocol.listings.listing import Listing, read_listing
from market.protocol.records.envelope import Record, open_record

log = structlog.get_logger(__name__)

T = TypeVar("T")

SHOWN_MAX = 20
_BUSY_S = 2.0
_RECORDS_MAX = 500
_DAY_MS = 86_400_000

_OWN_RECORDS = "SELECT raw FROM market_record WHERE source = ? ORDER BY seq DESC LIMIT ?"
_FINDINGS = "SELECT raw FROM market_record WHERE instr(raw, ?) > 0 AND instr(raw, ?) > 0 LIMIT ?"
_SALES = (
    "SELECT model, amount_nano, made_ms, is_booked, channel, lane, seq FROM sales ORDER BY made_ms DESC LIMIT ?"
)
_TOTALS = "SELECT model, COUNT(*), SUM(amount_nano) FROM sales WHERE made_ms >= ? GROUP BY model ORDER BY 3 DESC"
_LAST_ROW = "SELECT COALESCE(MAX(rowid), 0) FROM sales"
# SQLite takes the other columns from the row with the minimum. A row with amount 0 is not a sale.
_FIRST_OF_EACH = """
    SELECT model, amount_nano, MIN(made_ms), is_booked, channel, lane, seq FROM sales
    WHERE rowid > ? AND rowid <= ? AND amount_nano > 0 GROUP BY model
"""
_OPEN = "SELECT COUNT(*) FROM lanes WHERE NOT is_final"
_UNTOLD = """
    SELECT COUNT(*), COALESCE(SUM(refusals > 0), 0) FROM channels WHERE is_allocated AND submitted <> changes
"""


@dataclass(frozen=True, slots=True)
class Listed:
    """One of our own listings, in its newest revision; `is_ready` is False for a withdrawn one."""

    listing: Listing
    digest: str
    revision: int
    made_ns: int
    expires_ns: int | None
    is_alive: bool


@dataclass(frozen=True, slots=True)
class SoldRequest:
    """A buyer's request answered here, in nano-USD before the marketplace fee."""

    model: str
    amount_nano: int
    made_ns: int
    is_booked: bool
    channel: str
    lane: int
    seq: int


@dataclass(frozen=True, slots=True)
class Total:
    model: str
    requests: int
    amount_nano: int


@dataclass(frozen=True, slots=True)
class Sold:
    """The agent's local records of its sales.

    `untold` counts channels not fully reported to the marketplace, `refused` those of them that it rejects.
    """

    newest: tuple[SoldRequest, ...] = ()
    day: tuple[Total, ...] = ()
    month: tuple[Total, ...] = ()
    under_way: int = 0
    untold: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class AgentFiles:
    """The market folder of this gateway."""

    folder: Path

    def identity(self) -> str | None:
        """Return the seller identity, None if there is none. Reading does not create one."""
        own = OwnIdentity(self.folder)
        try:
            return own.id if own.exists else None
        except (SigningKeyUnusable, IdentityInvalid, OSError) as error:
            log.warning("own identity not read", reason=str(error))
            return None

    def listings(self, now_ms: int) -> tuple[Listed, ...]:
        """Return our own listings, the newest revision of each, active ones first."""
        rows = self._look(
            "selling-records.db", lambda db: db.execute(_OWN_RECORDS, (OWN, _RECORDS_MAX)).fetchall()
        )
        newest: dict[str, Record] = {}
        for (raw,) in rows or ():
            record = _opened(bytes(raw))
            if record is None or record.kind != "listing":
                continue
            known = newest.get(record.name)
            if known is None or known.revision < record.revision:
                newest[record.name] = record
        found = [each for record in newest.values() if (each := _listed(record, now_ms))]
        return tuple(sorted(found, key=lambda each: (not each.is_alive, each.listing.id)))

    def findings_about(self, identity: str) -> list[tuple[str, Findings]]:
        """Return findings about this identity from auditors known to the agent."""
        words = (b'"findings"', identity.encode(), _RECORDS_MAX)
        rows = self._look("selling-records.db", lambda db: db.execute(_FINDINGS, words).fetchall())
        found = []
        for (raw,) in rows or ():
            record = _opened(bytes(raw))
            if record is None or record.kind != "findings":
                continue
            try:
                found.append((record.issuer, read_findings(record)))
            except MarketError:
                continue
        return found

    def sold(self, now_ms: int) -> Sold:
        return self._look("selling.db", lambda db: _sold(db, now_ms)) or Sold()

    def sold_first(self, after_row: int) -> tuple[int, tuple[SoldRequest, ...]] | None:
        """Return the last row, and the earliest sale of each listing among the rows after `after_row`."""
        return self._look("selling.db", lambda db: _sold_first(db, after_row))

    def _look(self, name: str, look: Callable[[sqlite3.Connection], T]) -> T | None:
        """Run a query; None if there is no agent yet, or its file cannot be read now."""
        path = self.folder / name
        if not path.exists():
            return None
        try:
            address = f"file:{quote(str(path))}?mode=ro"
            with closing(sqlite3.connect(address, uri=True, timeout=_BUSY_S)) as db:
                return look(db)
        except sqlite3.Error as error:
            log.warning("the agent's file not read", file=name, reason=str(error))
            return None


def _sold(db: sqlite3.Connection, now_ms: int) -> Sold:
    newest = _requests(db.execute(_SALES, (SHOWN_MAX,)))
    untold, refused = db.execute(_UNTOLD).fetchone()
    return Sold(
        newest,
        _totals(db, now_ms - _DAY_MS),
        _totals(db, now_ms - 30 * _DAY_MS),
        db.execute(_OPEN).fetchone()[0],
        untold,
        refused,
    )


def _sold_first(db: sqlite3.Connection, after_row: int) -> tuple[int, tuple[SoldRequest, ...]]:
    last_row: int = db.execute(_LAST_ROW).fetchone()[0]
    if last_row < after_row:
        after_row = 0  # the file was replaced
    return last_row, _requests(db.execute(_FIRST_OF_EACH, (after_row, last_row)))


def _requests(rows: Iterable[tuple[str, int, int, int, str, int, int]]) -> tuple[SoldRequest, ...]:
    return tuple(
        SoldRequest(model, nano, made_ms * 10**6, bool(is_booked), channel, lane, seq)
        for model, nano, made_ms, is_booked, channel, lane, seq in rows
    )


def _totals(db: sqlite3.Connection, since_ms: int) -> tuple[Total, ...]:
    rows: Sequence[tuple[str, int, int]] = db.execute(_TOTALS, (since_ms,)).fetchall()
    return tuple(Total(*row) for row in rows)


def _opened(raw: bytes) -> Record | None:
    try:
        return open_record(raw)
    except MarketError:
        return None


def _listed(record: Record, now_ms: int) -> Listed | None:
    try:
        listing = read_listing(record, allows_loopback=True)
    except MarketError:
        return None
    is_alive = listing.is_ready and (record.expires_ms is None or record.expires_ms > now_ms)
    ends_ns = None if record.expires_ms is None else record.expires_ms * 10**6
    return Listed(listing, record.digest, record.revision, record.made_ms * 10**6, ends_ns, is_alive)

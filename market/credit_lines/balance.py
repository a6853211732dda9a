"""The balance of two partners: what was bought, sold and paid on a line, what is owed, and what may still be
bought.

Buyer and seller are two processes; each reads what the other has on disk. On either channel, only what its buyer
has signed counts. A buyer's own knowledge of that is never behind its seller's, and the receiver knows of payments
first. So no buyer promises more than the seller admits.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import msgspec

from market.credit_lines.partnership import Partnership
from market.protocol.channels.channel import Due, settle
from market.protocol.channels.credit_line import first_owes_nano, limit_nano
from market.protocol.channels.evidence import read_evidence
from market.protocol.channels.statements import Voucher
from market.protocol.channels.terms import LANES_MAX, ChannelTerms
from market.protocol.records.envelope import open_record
from market.protocol.records.key_status import Standing

T = TypeVar("T")

_BUSY_S = 5.0
_LAST_OF_LANE = """
    SELECT voucher, amount_nano FROM job
    WHERE channel = ? AND lane = ? AND receipt IS NOT NULL ORDER BY seq DESC LIMIT 1
"""
_LANES = "SELECT lane, evidence FROM lanes WHERE channel = ?"


@dataclass(frozen=True, slots=True)
class Balance:
    """Sums in nano-USD since the line was opened.

    `claimed_nano` was sold by our count, but not signed by the partner.
    """

    partnership: Partnership
    bought_nano: int
    sold_nano: int
    claimed_nano: int = 0

    @property
    def paid_nano(self) -> int:
        """Return what we have paid, as the partner acknowledges."""
        return self.partnership.paid_nano(self.partnership.own)

    @property
    def received_nano(self) -> int:
        """Return what the partner has paid, as we acknowledge."""
        return self.partnership.paid_nano(self.partnership.partner)

    @property
    def owed_nano(self) -> int:
        """Return what we owe the partner; negative if the partner owes us."""
        each = self.partnership
        is_first = each.own == each.line.first
        first_nano, second_nano = (self.bought_nano, self.sold_nano)[:: 1 if is_first else -1]
        owed_nano = first_owes_nano(first_nano, second_nano, each.paid)
        return owed_nano if is_first else -owed_nano

    @property
    def may_buy_nano(self) -> int:
        """Return the limit on the sum of all that we buy on this line."""
        return limit_nano(self.partnership.line, self.partnership.own, self.sold_nano, self.partnership.paid)

    @property
    def may_sell_nano(self) -> int:
        """Return the limit on the sum of all that the partner buys on this line."""
        return limit_nano(self.partnership.line, self.partnership.partner, self.bought_nano, self.partnership.paid)


class Balances:
    """Reads both processes' files of a market folder. Methods take milliseconds, and raise sqlite3.Error."""

    def __init__(self, folder: Path) -> None:
        self._buying = folder / "buying.db"
        self._selling = folder / "selling.db"
        self._dues: dict[tuple[str, int], tuple[bytes, Due]] = {}

    def of(self, partnership: Partnership) -> Balance:
        sold = self._sold(partnership.sold)
        bought_nano = self._bought_nano(partnership.bought)
        return Balance(
            partnership,
            bought_nano,
            sum(due.confirmed_nano for due in sold),
            sum(due.claimed_nano + due.disputed_nano for due in sold),
        )

    def _bought_nano(self, terms: ChannelTerms) -> int:
        """Each lane's newest receipt includes all that came before it, in its voucher's base."""

        def look(db: sqlite3.Connection) -> int:
            # One lookup by key per lane: a line lives for a year, and may have any number of jobs.
            found = (db.execute(_LAST_OF_LANE, (terms.channel, lane)).fetchone() for lane in range(LANES_MAX))
            return sum(_base_nano(voucher) + (nano or 0) for voucher, nano in filter(None, found))

        return _looked(self._buying, look, 0)

    def _sold(self, terms: ChannelTerms) -> list[Due]:
        nothing: list[tuple[int, bytes]] = []
        rows = _looked(self._selling, lambda db: db.execute(_LANES, (terms.channel,)).fetchall(), nothing)
        return [self._due(terms, lane, evidence) for lane, evidence in rows]

    def _due(self, terms: ChannelTerms, lane: int, evidence: bytes) -> Due:
        known = self._dues.get((terms.channel, lane))
        if known is None or known[0] != evidence:
            raws = msgspec.msgpack.decode(evidence, type=list[bytes])
            due = settle(read_evidence(map(open_record, raws), terms, _was_checked))
            known = self._dues[terms.channel, lane] = evidence, due
        return known[1]


def _was_checked(_identity: str, _key: str) -> Standing:
    """Trust all keys: the seller checked them before it stored these records."""
    return "current"


def _base_nano(voucher: bytes) -> int:
    return int(open_record(voucher).read("voucher", Voucher).base_nano)


def _looked(path: Path, look: Callable[[sqlite3.Connection], T], nothing: T) -> T:
    """Read the file of a process that may be writing to it; return `nothing` if it was never created."""
    if not path.exists():
        return nothing
    with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=_BUSY_S)) as db:
        try:
            return look(db)
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return nothing
            raise

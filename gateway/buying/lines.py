"""Buying from friends: a channel on each credit line, without a house and under our own identity.

The limit is read again before each request: it rises with payments and with what the friend buys from us.
"""

import asyncio
import sqlite3
from typing import Any, NamedTuple

from sqlalchemy.exc import SQLAlchemyError

from gateway.buying.channels import Pseudonym, Tie, pack_records, restored
from gateway.buying.signing import sign_left_open
from gateway.buying.store import Store
from gateway.cloud_worker.logbook import note
from gateway.friends.friends import Friends
from gateway.friends.friendship import Friendship
from gateway.friends.position import Positions
from gateway.market.bookkeeper import BookKeeper
from gateway.market.identity import OwnIdentity
from gateway.market.room import OWN
from market.errors import MarketError

EVERY_S = 5.0


class _Row(NamedTuple):
    """A credit line in the form of a stored channel."""

    seller: str
    buyer: str
    backing: str
    records: bytes
    limit_nano: int
    expires_ms: int


class Lines:
    """Credit lines as channels. One event loop owns it; files and databases are read in threads."""

    def __init__(
        self, friends: Friends, positions: Positions, own: OwnIdentity, store: Store, keeper: BookKeeper
    ) -> None:
        self._friends = friends
        self._positions = positions
        self._own = own
        self._store = store
        self._keeper = keeper
        self._ties: dict[str, list[Tie]] = {}
        self._unusable: set[str] = set()
        self._met: set[str] = set()
        self._refreshing = asyncio.Lock()

    def is_friend(self, seller: str) -> bool:
        """Return whether we have a line with this seller, even if its limit is used up."""
        return seller in self._ties

    def of(self, seller: str) -> list[Tie]:
        """Return the channels to this seller as of the last refresh."""
        return self._ties.get(seller, [])

    def all(self) -> list[Tie]:
        return [tie for ties in self._ties.values() for tie in ties]

    def speaker(self) -> Pseudonym:
        """Return our identity towards every friend: both sides of a line know each other's identity."""
        statements = tuple(record.raw for record in self._own.statements)
        return Pseudonym(self._own.id, self._own.signer, statements)

    async def run(self) -> None:
        """Read new lines, payments and sales until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(EVERY_S)

    async def refresh(self, seller: str = "") -> None:
        """Read the lines with this seller, or all, and their limits again.

        Lines that cannot be read stay as they were.
        """
        async with self._refreshing:
            chosen = [seller] if seller else list(self._ties)
            known = {tie.terms.channel: tie for each in chosen for tie in self.of(each)}
            try:
                found = await asyncio.to_thread(self._read, known, seller)
            except (MarketError, OSError, sqlite3.Error, SQLAlchemyError) as error:
                note("lines_unreadable", error=str(error))
                return
            for each in chosen:
                self._ties.pop(each, None)
            for tie, limit_nano, expires_ms in found:
                # Unlike an allocation, a line that the seller called used up is usable again when its limit rises.
                tie.is_retired = tie.is_retired and limit_nano <= tie.limit_nano
                tie.limit_nano, tie.expires_ms = limit_nano, expires_ms
                self._ties.setdefault(tie.terms.seller, []).append(tie)

    def _read(self, known: dict[str, Tie], seller: str) -> list[tuple[Tie, int, int]]:
        """Read lines in a thread. Ties in use are only looked up; their event loop changes them."""
        self._keeper.add([record.raw for record in self._own.statements], OWN)
        found = []
        for each in self._friends:
            if not each.is_open or seller not in ("", each.friend):
                continue
            limit_nano = self._positions.of(each).may_buy_nano
            tie = known.get(each.bought.channel) or self._restored(each, limit_nano)
            if tie is not None:
                found.append((tie, limit_nano, each.ends_ms))
        return found

    def _restored(self, each: Friendship, limit_nano: int) -> Tie | None:
        terms = each.bought
        records = pack_records([record.raw for record in each.records])
        row: Any = _Row(terms.seller, terms.buyer, terms.backing, records, limit_nano, each.ends_ms)
        self._keeper.add([record.raw for record in each.statements], each.url or each.friend)
        try:
            if terms.channel not in self._met:
                # Once in a process: later, jobs without a receipt are still being answered.
                sign_left_open(self._store, terms, self.speaker(), self._keeper.standing)
                self._met.add(terms.channel)
            return restored(row, self._store.last_jobs(terms.channel), self._keeper.standing)
        except MarketError as error:
            # Never replace it with an empty channel: that would reuse sequence numbers.
            if terms.channel not in self._unusable:
                note("line_unusable", line=each.line.id, error=str(error))
                self._unusable.add(terms.channel)
            return None

"""Buying from partners: a channel on each credit line, without a marketplace and under our own identity.

The limit is read again before each request: it rises with payments and with what the partner buys from us.
"""

import asyncio
import sqlite3
from typing import Any, NamedTuple

from sqlalchemy.exc import SQLAlchemyError

from market.buyer.channels import ChannelState, Pseudonym, pack_records, restored
from market.buyer.receipts import sign_left_open
from market.buyer.store import BuyingStore
from market.credit_lines.balance import Balances
from market.credit_lines.partners import Partners
from market.credit_lines.partnership import Partnership
from market.errors import MarketError
from market.network.identity import OwnIdentity
from market.network.record_keeper import RecordKeeper
from market.network.room import OWN
from runtime.workers.logbook import note

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
        self, partners: Partners, positions: Balances, own: OwnIdentity, store: BuyingStore, keeper: RecordKeeper
    ) -> None:
        self._partners = partners
        self._positions = positions
        self._own = own
        self._store = store
        self._keeper = keeper
        self._states: dict[str, list[ChannelState]] = {}
        self._unusable: set[str] = set()
        self._met: set[str] = set()
        self._refreshing = asyncio.Lock()

    def is_partner(self, seller: str) -> bool:
        """Return whether we have a line with this seller, even if its limit is used up."""
        return seller in self._states

    def of(self, seller: str) -> list[ChannelState]:
        """Return the channels to this seller as of the last refresh."""
        return self._states.get(seller, [])

    def all(self) -> list[ChannelState]:
        return [state for states in self._states.values() for state in states]

    def speaker(self) -> Pseudonym:
        """Return our identity towards every partner: both sides of a line know each other's identity."""
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
            chosen = [seller] if seller else list(self._states)
            known = {state.terms.channel: state for each in chosen for state in self.of(each)}
            try:
                found = await asyncio.to_thread(self._read, known, seller)
            except (MarketError, OSError, sqlite3.Error, SQLAlchemyError) as error:
                note("lines_unreadable", error=str(error))
                return
            for each in chosen:
                self._states.pop(each, None)
            for state, limit_nano, expires_ms in found:
                # Unlike an allocation, a line that the seller called used up is usable again when its limit rises.
                state.is_retired = state.is_retired and limit_nano <= state.limit_nano
                state.limit_nano, state.expires_ms = limit_nano, expires_ms
                self._states.setdefault(state.terms.seller, []).append(state)

    def _read(self, known: dict[str, ChannelState], seller: str) -> list[tuple[ChannelState, int, int]]:
        """Read lines in a thread. States in use are only looked up; their event loop changes them."""
        self._keeper.add([record.raw for record in self._own.statements], OWN)
        found = []
        for each in self._partners:
            if not each.is_open or seller not in ("", each.partner):
                continue
            limit_nano = self._positions.of(each).may_buy_nano
            state = known.get(each.bought.channel) or self._restored(each, limit_nano)
            if state is not None:
                found.append((state, limit_nano, each.ends_ms))
        return found

    def _restored(self, each: Partnership, limit_nano: int) -> ChannelState | None:
        terms = each.bought
        records = pack_records([record.raw for record in each.records])
        row: Any = _Row(terms.seller, terms.buyer, terms.backing, records, limit_nano, each.ends_ms)
        self._keeper.add([record.raw for record in each.statements], each.url or each.partner)
        try:
            if terms.channel not in self._met:
                # Sign only once in a process: later, jobs without a receipt are still being answered.
                sign_left_open(self._store, terms, self.speaker(), self._keeper.standing)
                self._met.add(terms.channel)
            return restored(row, self._store.last_jobs(terms.channel), self._keeper.standing)
        except MarketError as error:
            # Never replace it with an empty channel: that would reuse sequence numbers.
            if terms.channel not in self._unusable:
                note("line_unusable", line=each.line.id, error=str(error))
                self._unusable.add(terms.channel)
            return None

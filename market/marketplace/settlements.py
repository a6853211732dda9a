"""Settle channels: merge what both sides have signed, and book what is due beyond earlier bookings.

What is known of a channel only grows, and its sum is a function of that. So records may come from any party, in
any order and any number of times.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from accounting import chart
from accounting.errors import HoldExpired, HoldNotFound, IdempotencyConflict, InsufficientCredit, LedgerBusy
from accounting.ledger.postings import Posting
from accounting.rules.allocations import Allocated, Drawn, draw, draw_late
from accounting.rules.parts import Share
from accounting.spending.allocations import AllocationState, allocation_state
from market.errors import MarketplaceRefuses, NotRegistered
from market.marketplace.amounts_due import Decided, Reckoning, Seen, reckon
from market.marketplace.context import MS_NS, MarketplaceContext
from market.marketplace.forfeiture import Forfeiture
from market.marketplace.statements import identities_known, keep_statements, open_statements, standing_to_settle
from market.marketplace.tables import AllocationRow, Seller, allocation_table
from market.marketplace.terms import DAY_NS
from market.protocol.channels.channel import Channel, merge
from market.protocol.channels.evidence import evidence, read_evidence
from market.protocol.channels.terms import ChannelTerms, read_allocation
from market.protocol.records.envelope import Record, open_record
from market.protocol.records.key_status import Standing

LATE_NS = 30 * DAY_NS
"""Draws on an allocation stay possible for this time after the release of its credits, in nanoseconds."""
DRAW_NANO_MIN = 1_000_000
"""A tenth of a cent is drawn at once, and so are an allocation's first draws.

After these, smaller amounts wait.
"""
DRAW_EVERY_NS = 10 * 10**9
DRAWS_AT_ONCE = 16
_TRIES_MAX = 16
_column = allocation_table.c


@dataclass(frozen=True, slots=True)
class Settled:
    """The state of a channel: what is known of it, and `settled_nano`, which is booked."""

    channel: str
    reckoning: Reckoning
    settled_nano: int


@dataclass(frozen=True, slots=True)
class Settlements:
    context: MarketplaceContext

    def submit(self, digest: str, raws: Sequence[bytes], statements: Sequence[bytes] = ()) -> Settled:
        """Take records of an allocation's channel, and book what is due by now.

        After an allocation's first draws, tiny amounts wait for a few seconds, so that no one can flood the ledger.
        For a seller with a forfeiture, nothing is booked any more.

        Raises:
            NotRegistered: the marketplace has issued no such allocation.
            RecordInvalid, IdentityInvalid, StatementInvalid: one record cannot be trusted; none is stored.
            MarketplaceRefuses: it ended too long ago to book anything on it.
            LedgerBusy: too many other requests settle the same allocation now.
        """
        for _ in range(_TRIES_MAX):
            with self.context.read() as session:
                row = found(session, digest)
                is_forfeited = session.get_one(Seller, row.seller_user_id).forfeited_ns is not None
                terms = parties(self.context, row)
                channel = known(row, terms)
                new = open_statements(statements, (terms.buyer, terms.seller))
                if raws:
                    channel = merge(channel, self._read(session, raws, terms, new))
            reckoning = self._keep(row, channel, new, is_over=is_forfeited)
            if reckoning is not None:
                settled_nano = row.drawn_nano if is_forfeited else self._book(row, reckoning)
                if settled_nano > row.drawn_nano:
                    self._give_back_if_forfeited(row.seller_user_id)
                return Settled(terms.channel, reckoning, settled_nano)
        raise LedgerBusy("too many requests are settling this allocation at once")

    def due(self, limit: int) -> list[str]:
        """Return the digests of allocations with receipts that were not answered in time."""
        with self.context.read() as session:
            query = select(_column.digest).where(_column.next_check_ns <= self.context.clock_ns())
            return list(session.scalars(query.order_by(_column.next_check_ns).limit(limit)))

    def give_up(self, digest: str) -> None:
        """Stop checking an allocation periodically, because nothing can be booked on it."""
        with self.context.write() as session, session.begin():
            session.execute(update(allocation_table).where(_column.digest == digest).values(next_check_ns=None))

    def _read(
        self, session: Session, raws: Sequence[bytes], terms: ChannelTerms, new: Sequence[Record]
    ) -> Channel:
        exchanged = [
            open_record(raw)
            for issuer in (terms.buyer, terms.seller)
            for raw in self.context.statements_of(issuer)
        ]
        identities = identities_known(session, (terms.buyer, terms.seller), (*new, *exchanged))
        standing = standing_to_settle(identities, terms.buyer)
        return read_evidence(map(open_record, dict.fromkeys(raws)), terms, standing)

    def _keep(
        self, row: AllocationRow, channel: Channel, new: Sequence[Record], *, is_over: bool
    ) -> Reckoning | None:
        """Store what is known now. Return None if another process has stored something meanwhile."""
        reckoning = reckon(channel, row.limit_nano, _seen_of(row), decided_on(row), self.context.now_ms)
        values = {
            "evidence": json.dumps([record.raw.decode() for record in evidence(channel)]),
            "unanswered": json.dumps({n: [seen.digest, seen.since_ms] for n, seen in reckoning.seen.items()}),
            "decisions": json.dumps({n: [each.seq, each.amount_nano] for n, each in reckoning.decided.items()}),
            "jobs": reckoning.jobs,
            "next_check_ns": None if is_over else _next_check_ns(row, reckoning),
        }
        if not new and all(getattr(row, name) == value for name, value in values.items()):
            return reckoning
        values["version"] = row.version + 1
        with self.context.write() as session, session.begin():
            keep_statements(session, new)
            mine = (_column.id == row.id, _column.version == row.version)
            is_mine = session.execute(update(allocation_table).where(*mine).values(values)).rowcount  # type: ignore[attr-defined]
        row.version += 1
        return reckoning if is_mine else None

    def _book(self, row: AllocationRow, reckoning: Reckoning) -> int:
        """Draw what is due and return the sum of all draws."""
        allocated = Allocated(
            row.id, row.buyer_user_id, row.seller_user_id, row.limit_nano, row.fee_bps, row.expires_ns
        )
        before = Drawn(row.draws, row.drawn_nano)
        for _ in range(_TRIES_MAX):
            account = self._account(row.id, before)
            posting = self._next(allocated, account, reckoning.due_nano)
            more_nano = reckoning.due_nano - account.drawn.amount_nano
            if posting is None or self.context.clock_ns() < _draw_ns(row, more_nano):
                self._remember(row, reckoning, account.drawn)
                return account.drawn.amount_nano
            try:
                self.context.ledger.book(posting)
            except (IdempotencyConflict, InsufficientCredit, HoldExpired):
                continue  # Another process drew, spent or reaped meanwhile; read the state again.
        raise LedgerBusy("too many requests are settling this allocation at once")

    def _give_back_if_forfeited(self, user_id: str) -> None:
        """Refund what was booked while the seller's earnings were being forfeited."""
        with self.context.read() as session:
            seller = session.get_one(Seller, user_id)
        if seller.forfeited_ns is not None:
            Forfeiture(self.context).forfeit(user_id, seller.suspended_reason or "forfeited")

    def _account(self, allocation_id: str, before: Drawn) -> AllocationState:
        with self.context.read() as session:
            account = allocation_state(session, allocation_id, before)
        if account is None:
            raise HoldNotFound(f"no credits were ever reserved for {allocation_id}")
        return account

    def _next(self, allocated: Allocated, account: AllocationState, due_nano: int) -> Posting | None:
        if not account.is_reaped:
            return draw(allocated, account.drawn, due_nano)
        more_nano = min(due_nano, allocated.limit_nano) - account.drawn.amount_nano
        if more_nano > 0 and self.context.clock_ns() > allocated.expires_ns + LATE_NS:
            raise MarketplaceRefuses("ended", "the allocation ended too long ago to post anything on it")
        paid = chart.user_paid(allocated.buyer_id)
        there_nano = max(0, self.context.ledger.available(paid))
        covered = [Share(paid, min(there_nano, max(0, more_nano)))]
        return draw_late(allocated, account.drawn, due_nano, covered=covered)

    def _remember(self, row: AllocationRow, reckoning: Reckoning, drawn: Drawn) -> None:
        """Store where the next reading of the ledger starts, and stop checks of what is booked."""
        if drawn.turns == row.draws:
            return
        with self.context.write() as session, session.begin():
            latest = session.get_one(AllocationRow, row.id, with_for_update=True)
            if latest.draws < drawn.turns:
                latest.draws, latest.drawn_nano = drawn.turns, drawn.amount_nano
                latest.drawn_ns = self.context.clock_ns()
            if latest.version == row.version:
                latest.next_check_ns = _next_check_ns(latest, reckoning)


def _next_check_ns(row: AllocationRow, reckoning: Reckoning) -> int | None:
    """Return when to check it again: for amounts due but not booked, and for unanswered receipts."""
    times_ns = [] if reckoning.look_ms is None else [reckoning.look_ms * MS_NS]
    if (more_nano := reckoning.due_nano - row.drawn_nano) > 0:
        times_ns.append(_draw_ns(row, more_nano))
    return min(times_ns, default=None)


def _draw_ns(row: AllocationRow, more_nano: int) -> int:
    """Return from when on this amount may be drawn, always before the rest is released."""
    if more_nano >= DRAW_NANO_MIN or row.draws < DRAWS_AT_ONCE:
        return row.created_ns
    return min(row.drawn_ns + DRAW_EVERY_NS, row.expires_ns - DRAW_EVERY_NS)


def found(session: Session, digest: str) -> AllocationRow:
    """Return the allocation with this digest. Raises NotRegistered."""
    row = session.scalar(select(AllocationRow).where(_column.digest == digest))
    if row is None:
        raise NotRegistered("the marketplace has issued no such allocation")
    session.expunge(row)
    return row


def parties(context: MarketplaceContext, row: AllocationRow) -> ChannelTerms:
    """Return the two parties of an allocation's channel."""
    terms, _ = read_allocation(open_record(row.raw.encode()), context.speaker.id, _believed)
    return terms


def known(row: AllocationRow, terms: ChannelTerms) -> Channel:
    """Return the stored channel. It was verified on arrival, and counts whatever became of its keys since."""
    return read_evidence(_records(json.loads(row.evidence)), terms, _believed)


def _records(raws: Iterable[str]) -> Iterable[Record]:
    return (open_record(raw.encode()) for raw in raws)


def _believed(_: str, __: str) -> Standing:
    return "current"


def decided_on(row: AllocationRow) -> dict[int, Decided]:
    """Return the marketplace's decisions about an allocation's lanes."""
    kept: dict[str, Any] = json.loads(row.decisions)
    return {int(n): Decided(seq, amount_nano) for n, (seq, amount_nano) in kept.items()}


def _seen_of(row: AllocationRow) -> dict[int, Seen]:
    kept: dict[str, Any] = json.loads(row.unanswered)
    return {int(n): Seen(digest, since_ms) for n, (digest, since_ms) in kept.items()}

"""Issue allocations: reserve a buyer's credits for one seller, and sign that they are reserved."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from accounting import chart
from accounting.errors import IdempotencyConflict, InsufficientCredit, LedgerBusy
from accounting.money import format_usd
from accounting.payments.rows import put_if_new
from accounting.rules import market
from accounting.rules.held import Payer
from accounting.rules.parts import Share, split
from accounting.spending.funding_sources import credits_of
from market.errors import MarketplaceRefuses
from market.marketplace.context import MS_NS, MarketplaceContext
from market.marketplace.sellers import seller_behind
from market.marketplace.tables import AllocationRow, Seller, allocation_table
from market.protocol.channels.terms import SETTLE_GRACE_MS, Allocation
from market.protocol.records.amounts import Amount
from market.protocol.records.envelope import open_record

OPEN_MAX = 256
"""Most open allocations of one buyer."""
LIMIT_NANO_MIN = 1_000_000
_HOUR_MS = 3_600_000
_TRIES_MAX = 8
_column = allocation_table.c


@dataclass(frozen=True, slots=True)
class AllocationRequest:
    """A requested allocation of `limit_nano` of the payer's credits for `hours`.

    Identity `buyer` spends them at identity `seller`.
    """

    allocation_id: str
    payer: Payer
    buyer: str
    seller: str
    limit_nano: int
    hours: int


@dataclass(frozen=True, slots=True)
class Allocations:
    context: MarketplaceContext

    def issue(self, request: AllocationRequest) -> bytes:
        """Reserve the credits and return the allocation's record. The same request again returns the same record.

        Raises:
            NotRegistered: the marketplace does not know this seller.
            MarketplaceRefuses: the buyer is the seller, too many allocations are open, the seller is suspended, the
            time is
                too long, or the id belongs to another allocation.
            InsufficientCredit: there are fewer credits; promotional ones cannot be used here.
        """
        with self.context.write() as session, session.begin():
            row = session.get(AllocationRow, request.allocation_id)
            row = row or self._kept(session, self._row(session, request))
            _refuse_other(row, request)
            session.flush()
            session.expunge(row)
        try:
            self._reserve(request, row.seller_user_id, row.expires_ns)
        except InsufficientCredit:
            if self._is_forgotten(request.allocation_id):
                raise
        with self.context.write() as session, session.begin():
            # A request at the same moment that found too few credits may have deleted the row since.
            return self._kept(session, AllocationRow(**row.model_dump())).raw.encode()

    def _kept(self, session: Session, row: AllocationRow) -> AllocationRow:
        """Return the stored row with this row's id. Store this row if there is none."""
        found = session.get(AllocationRow, row.id, with_for_update=True)
        if found is None:
            put_if_new(session, row)
            found = session.get_one(AllocationRow, row.id)
        return found

    def _row(self, session: Session, request: AllocationRequest) -> AllocationRow:
        seller = seller_behind(session, request.seller)
        self._check(session, request, seller)
        now_ms = self.context.now_ms
        expires_ms = now_ms + request.hours * _HOUR_MS
        body = Allocation(
            request.buyer,
            request.seller,
            Amount(request.limit_nano),
            f"hold:{request.allocation_id}",
            self.context.epoch(),
        )
        record = self.context.speaker.say("allocation", request.allocation_id, 0, body, now_ms, expires_ms)
        return AllocationRow(
            id=request.allocation_id,
            digest=record.digest,
            raw=record.raw.decode(),
            buyer_user_id=request.payer.user_id,
            seller_user_id=seller.user_id,
            limit_nano=request.limit_nano,
            fee_bps=self.context.terms.fee_bps,
            created_ns=now_ms * MS_NS,
            expires_ns=(expires_ms + SETTLE_GRACE_MS) * MS_NS,
        )

    def _check(self, session: Session, request: AllocationRequest, seller: Seller) -> None:
        most = self.context.terms.allocation_hours_max
        if not 1 <= request.hours <= most:
            raise MarketplaceRefuses("hours", f"an allocation must last from 1 to {most} hours")
        if request.limit_nano < LIMIT_NANO_MIN:
            raise MarketplaceRefuses("limit", f"an allocation must be at least {format_usd(LIMIT_NANO_MIN)} USD")
        if seller.user_id == request.payer.user_id or request.buyer == request.seller:
            raise MarketplaceRefuses(
                "own_seller", "this seller is the buyer's own, and buyers cannot pay themselves"
            )
        if seller.forfeited_ns is not None or seller.suspended_reason:
            why = seller.suspended_reason or "its earnings are forfeited"
            raise MarketplaceRefuses("seller_barred", f"this seller cannot receive allocations now: {why}")
        now_ns = self.context.clock_ns()
        query = select(func.count()).where(
            _column.buyer_user_id == request.payer.user_id, _column.expires_ns > now_ns
        )
        if (session.scalar(query) or 0) >= OPEN_MAX:
            raise MarketplaceRefuses("too_many", f"{OPEN_MAX} allocations are open: wait until some of them end")

    def _reserve(self, request: AllocationRequest, seller_user_id: str, expires_ns: int) -> None:
        for _ in range(_TRIES_MAX):
            if self.context.ledger.is_booked(f"hold:{request.allocation_id}"):
                return
            shares = split(request.limit_nano, self._credits(request.payer, seller_user_id))
            try:
                self.context.ledger.book(market.hold(request.allocation_id, shares, expires_ns))
            except (InsufficientCredit, IdempotencyConflict):
                # Another request has spent some of these credits, or made this reservation. Look again.
                continue
            return
        raise LedgerBusy(f"the credits of {request.payer.user_id} change too quickly to reserve them")

    def _credits(self, payer: Payer, seller_user_id: str) -> Sequence[Share]:
        """Return the payer's bought credits, in the order in which they pay.

        An organization's pool cannot buy from its own members: two of them could turn its credits into their
        money.
        """
        with self.context.read() as session:
            found = credits_of(session, payer, self.context.clock_ns())
        is_own = payer.pool_id and self.context.organization_of(seller_user_id) == payer.pool_id
        excluded = {chart.pool_paid(payer.pool_id)} if is_own else set()
        return [share for share in found if not chart.is_promo(share.account) and share.account not in excluded]

    def _is_forgotten(self, allocation_id: str) -> bool:
        """Delete an unpublished allocation. Return False if its credits are reserved by now."""
        with self.context.write() as session, session.begin():
            row = session.get(AllocationRow, allocation_id, with_for_update=True)
            if self.context.ledger.is_booked(f"hold:{allocation_id}"):
                return False
            if row is not None:
                session.delete(row)
            return True


def _refuse_other(row: AllocationRow, request: AllocationRequest) -> None:
    """Refuse a changed request: the first one under a key counts, even if its credits are not reserved yet."""
    was = open_record(row.raw.encode()).read("allocation", Allocation)
    then = row.buyer_user_id, row.limit_nano, was.buyer, was.seller
    if then != (request.payer.user_id, request.limit_nano, request.buyer, request.seller):
        raise MarketplaceRefuses("id", "this key was used for another allocation: choose another key")

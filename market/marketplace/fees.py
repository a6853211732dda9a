"""Manage the fee of a dispute: held from the party that opens it, and kept if it loses."""

from contextlib import suppress
from dataclasses import dataclass

from accounting import chart
from accounting.errors import AlreadyResolved, HoldExpired, IdempotencyConflict, InsufficientCredit
from accounting.rules import market
from accounting.rules.market import BPS
from accounting.rules.parts import HeldPart, Share
from market.marketplace.context import MarketplaceContext
from market.marketplace.tables import DisputeRow
from market.marketplace.terms import DAY_NS
from market.protocol.audits.disputes import Side

_GRACE_NS = DAY_NS


def user_of(row: DisputeRow, side: str) -> str:
    return row.buyer_user_id if side == "buyer" else row.seller_user_id


@dataclass(frozen=True, slots=True)
class Fees:
    context: MarketplaceContext

    def check(self, account: str, fee_nano: int) -> None:
        """Check that the fee could be held now. Raises InsufficientCredit."""
        if (there_nano := self.context.ledger.available(account)) < fee_nano:
            raise InsufficientCredit(account, fee_nano, there_nano)

    def reserve_funds(self, row: DisputeRow, side: Side) -> DisputeRow:
        """Hold the fee, without which no dispute is open. The party that paid it is the opener.

        Raises:
            InsufficientCredit: this side has less, and the other has paid no fee; the dispute is deleted.
        """
        share = Share(chart.user_paid(user_of(row, side)), row.fee_nano)
        other: Side = "seller" if side == "buyer" else "buyer"
        try:
            self.context.ledger.book(market.hold(row.id, (share,), row.answer_due_ns + _GRACE_NS))
        except IdempotencyConflict:
            side = other
        except InsufficientCredit:
            if self._is_forgotten(row.id):
                raise
            side = other
        return self._opened(row, side)

    def end(self, row: DisputeRow) -> None:
        """Keep the fee if its opener has lost, else release it. The ledger does it once."""
        opener = user_of(row, row.opened_by)
        seq = self.context.ledger.pending_seq(f"hold:{row.id}")
        if seq is None:
            return
        part = HeldPart(chart.user_paid(opener), row.fee_nano, seq)
        order = market.PurchaseHold(row.id, (part,))
        sale = market.SellerBill(row.seller_user_id, row.fee_nano, BPS)
        end = market.capture(order, sale) if row.loser == row.opened_by else market.release(order)
        # It may have been resolved before, or released by the reaper.
        with suppress(AlreadyResolved, HoldExpired):
            self.context.ledger.book(end)

    def _is_forgotten(self, dispute_id: str) -> bool:
        """Delete a dispute without a fee. Return False if the other side has paid it."""
        with self.context.write() as session, session.begin():
            new = session.get(DisputeRow, dispute_id, with_for_update=True)
            if self.context.ledger.is_booked(f"hold:{dispute_id}"):
                return False
            if new is not None:
                session.delete(new)
            return True

    def _opened(self, row: DisputeRow, side: Side) -> DisputeRow:
        with self.context.write() as session, session.begin():
            kept = session.get(DisputeRow, row.id, with_for_update=True)
            if kept is None:
                # The other side asked at the same moment, could not pay the fee, and deleted the row.
                kept = DisputeRow(**row.model_dump())
                session.add(kept)
            if kept.status == "new":
                kept.status, kept.opened_by = "open", side
            session.flush()
            session.expunge(kept)
            return kept

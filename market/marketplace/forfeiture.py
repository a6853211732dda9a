"""Forfeit earnings of a seller that did not sell what it listed: its buyers get their money back."""

from dataclasses import dataclass

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from accounting import chart
from accounting.errors import IdempotencyConflict, InsufficientCredit, LedgerBusy
from accounting.rules.usage_refunds import refund
from accounting.spending.charges import event_legs, find_charge, find_refund_parties
from accounting.spending.earned import earned_after
from market.errors import NotRegistered
from market.marketplace.context import MarketplaceContext
from market.marketplace.tables import Seller, maturity_table, withheld_table

_PAGE = 1_000
_TRIES_MAX = 8
_maturity, _withheld = maturity_table.c, withheld_table.c


@dataclass(frozen=True, slots=True)
class Forfeiture:
    context: MarketplaceContext

    def forfeit(self, user_id: str, why: str) -> int:
        """Refund all unmatured earnings of a seller to their buyers, and suspend the seller. Return the number of
        sales.

        Use it if it is proved that what was sold was not what was listed. The marketplace returns its fee too, so that
        it does not earn from fraud. It is final: records submitted later are not booked, and reinstating the
        seller does not change that. An interrupted call continues when it is repeated.

        Raises:
            NotRegistered: the user sells nothing here.
        """
        with self.context.write() as session, session.begin():
            seller = session.get(Seller, user_id, with_for_update=True)
            if seller is None:
                raise NotRegistered(f"{user_id} sells nothing here")
            seller.suspended_reason = why
            if seller.forfeited_ns is None:
                seller.forfeited_ns = self.context.clock_ns()
            sales = set(self._given_up(session, seller))
        # Search again: a settlement that books at this moment is found now, or it notices the forfeiture
        # afterwards.
        with self.context.read() as session:
            sales.update(self._given_up(session, session.get_one(Seller, user_id)))
        for charge_id in sorted(sales):
            self._give_back(charge_id, why)
        self._end_new(user_id)
        return len(sales)

    def _given_up(self, session: Session, seller: Seller) -> list[str]:
        """Return sales that have not matured, and those withheld because of a dispute."""
        withheld = select(_withheld.charge_id).where(_withheld.seller_user_id == seller.user_id)
        return [*self._unmatured(session, seller), *session.scalars(withheld)]

    def _unmatured(self, session: Session, seller: Seller) -> list[str]:
        """Return sales that are not in a maturity yet, or in one that is not booked."""
        new = (_maturity.seller_user_id == seller.user_id, _maturity.status == "new")
        ranges = [
            tuple(row) for row in session.execute(select(_maturity.first_seq, _maturity.last_seq).where(*new))
        ]
        ranges.append((seller.matured_seq + 1, 2**63))
        after_seq, found = min(first for first, _ in ranges) - 1, list[str]()
        while page := earned_after(session, seller.user_id, after_seq, limit=_PAGE):
            found += [
                sale.charge_id
                for sale in page
                if any(first <= sale.transfer_seq <= last for first, last in ranges)
            ]
            after_seq = page[-1].transfer_seq
        return found

    def _give_back(self, charge_id: str, why: str) -> None:
        """Refund a whole sale, and settle the buyers' debts from it."""
        key = f"refund:{charge_id}"
        for _ in range(_TRIES_MAX):
            if self.context.ledger.is_booked(key):
                break
            with self.context.read() as session:
                charge = find_charge(session, charge_id)
                assert charge is not None, "a seller's earnings were charged to a buyer"
                standing = find_refund_parties(session, charge, self.context.clock_ns())
            try:
                self.context.ledger.book(refund(charge, charge.charge_nano, why, standing))
            except (InsufficientCredit, IdempotencyConflict):
                continue  # Some of it matured or was refunded at this moment; look again.
            break
        else:
            raise LedgerBusy(f"the draw {charge_id} changes too quickly to be refunded")
        with self.context.read() as session:
            owners = {chart.owner_of(leg.credit) for leg in event_legs(session, key)} - {""}
        for owner in owners:
            self.context.ledger.settle_debt(key, owner)

    def _end_new(self, user_id: str) -> None:
        with self.context.write() as session, session.begin():
            new = (_maturity.seller_user_id == user_id, _maturity.status == "new")
            session.execute(delete(maturity_table).where(*new))
            session.execute(delete(withheld_table).where(_withheld.seller_user_id == user_id))

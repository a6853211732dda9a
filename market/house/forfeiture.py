"""Forfeiture: what was sold was not what was listed, and whoever bought it gets the money back."""

from dataclasses import dataclass

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from accounting import chart
from accounting.errors import IdempotencyConflict, InsufficientCredit, LedgerBusy
from accounting.rules.usage_refunds import refund
from accounting.spending.charges import event_legs, find_charge, find_standing
from accounting.spending.earned import earned_after
from market.errors import NotRegistered
from market.house.office import Office
from market.house.tables import Seller, maturity_table, withheld_table

_PAGE = 1_000
_TRIES_MAX = 8
_maturity, _withheld = maturity_table.c, withheld_table.c


@dataclass(frozen=True, slots=True)
class Forfeiture:
    office: Office

    def forfeit(self, user_id: str, why: str) -> int:
        """Give all that a seller has earned and that has not matured back to who paid it, and bar the seller.

        For proof that what was sold was not what was listed. The house gives its fee back, too: nobody earns by a
        fraud. It is final: what is handed in later is not booked, and ending the bar changes nothing of that.
        Returns how many sales that were; cut short and called again, it goes on.

        Raises:
            NotRegistered: the user sells nothing here.
        """
        with self.office.write() as session, session.begin():
            seller = session.get(Seller, user_id, with_for_update=True)
            if seller is None:
                raise NotRegistered(f"{user_id} sells nothing here")
            seller.barred_why = why
            if seller.forfeited_ns is None:
                seller.forfeited_ns = self.office.clock_ns()
            sales = set(self._given_up(session, seller))
        # Again: what a settlement books in this moment is found now, or it finds then that this has happened.
        with self.office.read() as session:
            sales.update(self._given_up(session, session.get_one(Seller, user_id)))
        for charge_id in sorted(sales):
            self._give_back(charge_id, why)
        self._end_new(user_id)
        return len(sales)

    def _given_up(self, session: Session, seller: Seller) -> list[str]:
        """Sales that have not matured, and those that wait for the end of a dispute."""
        withheld = select(_withheld.charge_id).where(_withheld.seller_user == seller.user_id)
        return [*self._unmatured(session, seller), *session.scalars(withheld)]

    def _unmatured(self, session: Session, seller: Seller) -> list[str]:
        """Sales that nothing was told about yet, or that were told to mature and are not booked."""
        new = (_maturity.seller_user == seller.user_id, _maturity.status == "new")
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
        """Refund a sale whole. What the buyer owes is taken out of it."""
        key = f"refund:{charge_id}"
        for _ in range(_TRIES_MAX):
            if self.office.ledger.is_booked(key):
                break
            with self.office.read() as session:
                charge = find_charge(session, charge_id)
                assert charge is not None, "what a seller earned was charged to somebody"
                standing = find_standing(session, charge, self.office.clock_ns())
            try:
                self.office.ledger.book(refund(charge, charge.charge_nano, why, standing))
            except (InsufficientCredit, IdempotencyConflict):
                continue  # Something matured, or was refunded, in this moment: it is looked again.
            break
        else:
            raise LedgerBusy(f"the draw {charge_id} changes too quickly to be given back")
        with self.office.read() as session:
            owners = {chart.owner_of(leg.credit) for leg in event_legs(session, key)} - {""}
        for owner in owners:
            self.office.ledger.settle_debt(key, owner)

    def _end_new(self, user_id: str) -> None:
        with self.office.write() as session, session.begin():
            new = (_maturity.seller_user == user_id, _maturity.status == "new")
            session.execute(delete(maturity_table).where(*new))
            session.execute(delete(withheld_table).where(_withheld.seller_user == user_id))

"""Mature earnings, or withhold them until a dispute about their buyer ends.

Maturing earnings are first stored, in one transaction with the position in the ledger, and then booked. Any later
run books what was stored and not booked. So no sale matures twice, and none is forgotten.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby

from sqlalchemy import func, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from accounting import chart
from accounting.errors import IdempotencyConflict, InsufficientCredit, LedgerBusy, LedgerError
from accounting.ledger.balances import Reader
from accounting.rules import earnings
from accounting.rules.market import BPS
from accounting.spending.earned import Earned, earned_after, given_back
from accounting.tables import account_table
from market.marketplace.context import MarketplaceContext
from market.marketplace.probation import Probation, SellerHistory, matures_before_ns, probation
from market.marketplace.tables import (
    Maturity,
    Seller,
    Withheld,
    allocation_table,
    maturity_table,
    seller_table,
    withheld_table,
)
from market.marketplace.terms import DAY_NS

_PAGE = 1_000
_TRIES_MAX = 8
_maturity, _withheld, _allocation = maturity_table.c, withheld_table.c, allocation_table.c


@dataclass(frozen=True, slots=True)
class Earnings:
    """Mature earnings. `is_disputed` returns whether a buyer's payments (by user) may be taken back."""

    context: MarketplaceContext
    is_disputed: Callable[[str], bool]

    def look(self) -> None:
        """Mature and release the earnings of every seller that are old enough.

        Raises:
            LedgerError, SQLAlchemyError: it failed for some sellers, and succeeded for the others.
        """
        failed: Exception | None = None
        for user_id in self._earning():
            try:
                self.mature(user_id)
            except (LedgerError, SQLAlchemyError) as error:
                failed = error  # The other sellers do not wait for this one.
        self._book_all()
        self._release_all()
        if failed is not None:
            raise failed

    def mature(self, user_id: str) -> None:
        """Store which of a seller's earnings are old enough by now. `look` books them."""
        now_ns = self.context.clock_ns()
        with self.context.write() as session, session.begin():
            seller = session.get(Seller, user_id, with_for_update=True)
            if seller is None or seller.suspended_reason:
                return
            is_new = not self._probation(session, user_id).is_over
            before_ns = matures_before_ns(self.context.terms, now_ns, is_new=is_new)
            bps = self.context.terms.reserve_bps if is_new else 0
            self._free_withheld(session, user_id, bps)
            found = earned_after(session, user_id, seller.matured_seq, limit=_PAGE)
            ripe = [each for each in found if each.created_ns < before_ns]
            # After a clock was set back, later sales must not mature first.
            ripe = ripe[: next((n for n, each in enumerate(found) if each.created_ns >= before_ns), len(found))]
            for day, some in groupby(ripe, key=lambda each: each.created_ns // DAY_NS):
                self._write_down(session, user_id, f"{_date(day)}", list(some), bps)
            seller.matured_seq = ripe[-1].transfer_seq if ripe else seller.matured_seq

    def _write_down(self, session: Session, user_id: str, day: str, sales: Sequence[Earned], bps: int) -> None:
        back = given_back(session, [sale.charge_id for sale in sales])
        buyers = _buyers(session, {sale.ref for sale in sales})
        ripe_nano = 0
        for sale in sales:
            left_nano = max(0, sale.amount_nano - back.get(sale.charge_id, 0))
            buyer = buyers.get(sale.ref, "")
            if left_nano and self.is_disputed(buyer):
                session.add(
                    Withheld(
                        transfer_seq=sale.transfer_seq,
                        seller_user_id=user_id,
                        buyer_user_id=buyer,
                        charge_id=sale.charge_id,
                        amount_nano=sale.amount_nano,
                    )
                )
            else:
                ripe_nano += left_nano
        if ripe_nano:
            seqs = sales[0].transfer_seq, sales[-1].transfer_seq
            session.add(self._row(user_id, f"{day}.{seqs[1]}", ripe_nano, bps, seqs))

    def _row(self, user_id: str, label: str, amount_nano: int, bps: int, seqs: tuple[int, int]) -> Maturity:
        return Maturity(
            seller_user_id=user_id,
            label=label,
            amount_nano=amount_nano,
            reserve_bps=bps,
            first_seq=seqs[0],
            last_seq=seqs[1],
            created_ns=self.context.clock_ns(),
        )

    def _free_withheld(self, session: Session, user_id: str, bps: int) -> None:
        after_seq = 0
        while rows := self._withheld(session, user_id, after_seq):
            after_seq = rows[-1].transfer_seq
            self._free(session, user_id, bps, rows)

    def _withheld(self, session: Session, user_id: str, after_seq: int) -> Sequence[Withheld]:
        query = select(Withheld).where(_withheld.seller_user_id == user_id, _withheld.transfer_seq > after_seq)
        return session.scalars(query.order_by(_withheld.transfer_seq).limit(_PAGE)).all()

    def _free(self, session: Session, user_id: str, bps: int, rows: Sequence[Withheld]) -> None:
        back = given_back(session, [row.charge_id for row in rows])
        disputed = {buyer for buyer in {row.buyer_user_id for row in rows} if self.is_disputed(buyer)}
        for row in rows:
            if row.buyer_user_id in disputed:
                continue
            left_nano = max(0, row.amount_nano - back.get(row.charge_id, 0))
            if left_nano:
                seqs = row.transfer_seq, row.transfer_seq
                session.add(self._row(user_id, f"w.{row.transfer_seq}", left_nano, bps, seqs))
            session.delete(row)

    def _book_all(self) -> None:
        for row in self._with_status("new", self.context.clock_ns()):
            amount_nano = self._book(row.seller_user_id, row.label, row.amount_nano, row.reserve_bps)
            kept_nano = amount_nano * row.reserve_bps // BPS
            self._move(row, "booked" if kept_nano else "released", amount_nano)

    def _book(self, user_id: str, label: str, amount_nano: int, bps: int) -> int:
        """Book an amount, as far as refunds have left it, and return the booked amount."""
        for _ in range(_TRIES_MAX):
            there_nano = max(0, self.context.ledger.available(chart.seller_maturing(user_id)))
            some_nano = min(amount_nano, there_nano)
            posting = earnings.matured(user_id, label, some_nano, bps)
            try:
                self.context.ledger.book(posting)
            except InsufficientCredit:
                continue
            except IdempotencyConflict:
                return amount_nano  # It was booked before, when the balance was different.
            if not some_nano and self.context.ledger.is_booked(posting.idem_key):
                return amount_nano  # The balance is empty because another gateway has just booked it.
            return some_nano
        raise LedgerBusy(f"the earnings of {user_id} change too quickly to become available; try again")

    def _release_all(self) -> None:
        before_ns = self.context.clock_ns() - earnings.RESERVE_DAYS * DAY_NS
        for row in self._with_status("booked", before_ns):
            kept_nano = row.amount_nano * row.reserve_bps // BPS
            there_nano = max(0, self.context.ledger.available(chart.seller_reserve(row.seller_user_id)))
            try:
                some_nano = min(kept_nano, there_nano)
                self.context.ledger.book(earnings.reserve_released(row.seller_user_id, row.label, some_nano))
            except InsufficientCredit:
                continue  # A refund has just taken some of it; the next run reads the new balance.
            except IdempotencyConflict:
                pass  # It was released before, when the balance was different.
            self._move(row, "released", row.amount_nano)

    def _with_status(self, status: str, before_ns: int) -> Sequence[Maturity]:
        """Return maturities with this status of sellers that are not suspended."""
        suspended = select(seller_table.c.user_id).where(seller_table.c.suspended_reason.is_not(None))
        query = select(Maturity).where(_maturity.status == status, _maturity.created_ns <= before_ns)
        query = query.where(_maturity.seller_user_id.not_in(suspended)).order_by(_maturity.created_ns).limit(_PAGE)
        with self.context.read() as session:
            found = session.scalars(query).all()
            session.expunge_all()
        return found

    def _move(self, row: Maturity, status: str, amount_nano: int) -> None:
        # Match the status as well: another gateway may have advanced it at the same moment.
        mine = (
            _maturity.seller_user_id == row.seller_user_id,
            _maturity.label == row.label,
            _maturity.status == row.status,
        )
        with self.context.write() as session, session.begin():
            values = {"status": status, "amount_nano": amount_nano}
            session.execute(update(maturity_table).where(*mine).values(values))

    def _earning(self) -> list[str]:
        """Return the sellers with earnings that have not matured."""
        account = account_table.c
        is_there = account.credits_posted - account.debits_posted > 0
        matches = account.code.startswith("seller:") & account.code.endswith(":maturing")
        with self.context.read() as session:
            return [
                chart.seller_of(code) for code in session.scalars(select(account.code).where(matches, is_there))
            ]

    def probation_of(self, user_id: str) -> Probation:
        """Return what a seller still needs to leave the new-seller period."""
        with self.context.read() as session:
            return self._probation(session, user_id)

    def _probation(self, reader: Session, user_id: str) -> Probation:
        query = (
            select(_allocation.buyer_user_id, func.sum(_allocation.jobs), func.min(_allocation.created_ns))
            .where(_allocation.seller_user_id == user_id, _allocation.drawn_nano > 0)
            .group_by(_allocation.buyer_user_id)
        )
        rows = reader.execute(query).all()
        record = SellerHistory({row[0]: int(row[1]) for row in rows}, min((row[2] for row in rows), default=None))
        return probation(record, self.context.terms, self.context.clock_ns())


def _buyers(reader: Reader, allocation_ids: set[str]) -> dict[str, str]:
    query = select(_allocation.id, _allocation.buyer_user_id).where(_allocation.id.in_(allocation_ids))
    return {row[0]: row[1] for row in reader.execute(query)}


def _date(day: int) -> str:
    """Return the date of a day, by its number since 1970."""
    return datetime.fromtimestamp(day * DAY_NS // 10**9, UTC).date().isoformat()

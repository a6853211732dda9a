"""Give payments access to the ledger: book an event and wait, check whether it is booked, read balances."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from sqlalchemy import select
from sqlalchemy.orm import Session

from accounting import chart
from accounting.errors import DatabaseFailing, IdempotencyConflict, InsufficientCredit, LedgerBusy
from accounting.ledger.balances import balance
from accounting.ledger.postings import Posted, Posting
from accounting.ledger.writer import Writer
from accounting.rules import debts
from accounting.tables import account_table, event_table, transfer_table

OpenSession: TypeAlias = Callable[[], Session]

_ANSWER_S = 30.0
_TAKES_MAX = 8


@dataclass(frozen=True, slots=True)
class Ledger:
    """Wait for each answer. Called from threads without other work."""

    poster: Writer
    read: OpenSession

    def book(self, posting: Posting) -> Posted | None:
        """Book an event, or find it booked. Return None for an event that moves nothing.

        Raises as the poster does, and DatabaseFailing if no answer comes in time.
        """
        if not posting.legs:
            return None
        try:
            return self.poster.submit(posting).result(_ANSWER_S)
        except TimeoutError:
            raise DatabaseFailing(f"the ledger has not answered within {_ANSWER_S:.0f} s") from None

    def is_booked(self, idem_key: str) -> bool:
        with self.read() as session:
            return session.scalar(select(event_table.c.seq).where(event_table.c.idem_key == idem_key)) is not None

    def pending_seq(self, idem_key: str) -> int | None:
        """Return the number of the first transfer of an event; None if it is not booked."""
        query = (
            select(transfer_table.c.seq)
            .join(event_table, event_table.c.seq == transfer_table.c.event_seq)
            .where(event_table.c.idem_key == idem_key, transfer_table.c.leg == 0)
        )
        with self.read() as session:
            return session.scalar(query)

    def available(self, account: str) -> int:
        with self.read() as session:
            return balance(session, account).available_nano

    def still_owed(self, idem_key: str, receivable: str) -> int:
        """Return what an event made a user owe, as far as it is still owed."""
        query = (
            select(transfer_table.c.amount)
            .join(event_table, event_table.c.seq == transfer_table.c.event_seq)
            .join(account_table, account_table.c.id == transfer_table.c.debit)
            .where(event_table.c.idem_key == idem_key, account_table.c.code == receivable)
        )
        with self.read() as session:
            return min(session.scalar(query) or 0, balance(session, receivable).available_nano)

    def settle_debt(self, cause: str, user_id: str) -> None:
        """Settle a user's debt from credits that came under the key `cause`, as far as they go, once per key.

        Raises LedgerBusy if the credits change during each of several tries.
        """
        for _ in range(_TAKES_MAX):
            owed_nano = self.available(chart.user_receivable(user_id))
            if owed_nano <= 0:
                return
            try:
                self.book(debts.settled(cause, user_id, owed_nano, self.available(chart.user_paid(user_id))))
            except InsufficientCredit:
                continue  # Another request has used some of the credits meanwhile.
            except IdempotencyConflict:
                return  # It was settled then, and a newer debt has come since.
            return
        raise LedgerBusy(f"the credits of {user_id} change too quickly to settle the debt")

    def settle_sellers_debt(self, cause: str, seller_id: str) -> int:
        """Settle a seller's debt from payable earnings, once per `cause`. Return the remaining debt in nano-USD.

        Raises LedgerBusy if the earnings change during each of several tries.
        """
        receivable, payable = chart.seller_receivable(seller_id), chart.seller_payable(seller_id)
        for _ in range(_TAKES_MAX):
            owed_nano = self.available(receivable)
            if owed_nano <= 0:
                return 0
            try:
                self.book(debts.settled_by_seller(cause, seller_id, owed_nano, self.available(payable)))
            except InsufficientCredit:
                continue
            except IdempotencyConflict:
                pass  # It was settled then, and a newer debt has come since.
            return max(self.available(receivable), 0)
        raise LedgerBusy(f"the earnings of {seller_id} change too quickly to settle the debt")

    def take_back(self, user_id: str, amount_nano: int, posting: Callable[[int, int], Posting]) -> None:
        """Book what is taken from a user, whether or not the user has the credits.

        `posting` takes the user's current credits and the rest, which the user owes from then on. Another request
        may spend credits in between: the ledger then refuses, and the amounts are read again. Raises LedgerBusy if
        this happens too often.
        """
        for _ in range(_TAKES_MAX):
            paid_nano = min(max(self.available(chart.user_paid(user_id)), 0), amount_nano)
            event = posting(paid_nano, amount_nano - paid_nano)
            if self.is_booked(event.idem_key):
                return
            try:
                self.book(event)
            except InsufficientCredit:
                continue
            except IdempotencyConflict:
                return  # Another process booked it a moment ago, with another split.
            return
        raise LedgerBusy(f"the credits of {user_id} change too quickly to take some back")

"""Keep fresh credits with their buyer: a bank may still take back a recent card payment.

Moved into a pool, others would spend them before the bank takes the payment back, and no one would pay for that.
"""

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from accounting import chart
from accounting.errors import LedgerBusy
from accounting.ledger.balances import balance
from accounting.money import format_usd
from accounting.payments.context import PaymentsContext
from accounting.payments.errors import PayerFrozen, PaymentInvalid
from accounting.payments.frozen import frozen_why
from accounting.payments.payers import locked
from accounting.payments.refunds import GONE
from accounting.payments.tables import refund_table, topup_table

_topup, _refund = topup_table.c, refund_table.c
_TURN_NS = 120 * 10**9
"""Time limit of one move, including the ledger's answer. If its process dies, other moves wait this long."""


def fresh_nano(session: Session, user_id: str, since_ns: int) -> int:
    """Return what a user has paid for since then, less refunds of it."""
    paid = (_topup.user_id == user_id, _topup.status == "paid", _topup.updated_ns > since_ns)
    bought = session.scalar(select(func.sum(_topup.credit_nano)).where(*paid))
    back = select(func.sum(_refund.amount_nano)).join(topup_table, _topup.id == _refund.topup_id)
    returned = session.scalar(back.where(*paid, _refund.status.not_in(GONE)))
    return int(bought or 0) - int(returned or 0)


class Move:
    """Move a user's credits to others: one move at a time, and never fresh credits.

    Credits spent meanwhile count as old ones. A move ends when the ledger has answered. If it has not, it may
    still be booked, so its time has to run out.
    """

    def __init__(self, context: PaymentsContext, user_id: str, amount_nano: int) -> None:
        self._context = context
        self._user_id = user_id
        self._amount_nano = amount_nano
        self._until_ns = 0

    def begin(self) -> None:
        """Begin the move.

        Raises:
            PayerFrozen: the user is frozen.
            PaymentInvalid: the user has too few old credits.
            LedgerBusy: another move is in progress.
        """
        now_ns, rest_s = self._context.clock_ns(), self._context.terms.pool_rest_s
        with self._context.write() as session, session.begin():
            payer = locked(session, self._user_id)
            if payer.moving_until_ns > now_ns:
                raise LedgerBusy(f"credits of {self._user_id} are being moved; try again")
            if why := frozen_why(session, self._user_id):
                raise PayerFrozen(self._user_id, why)
            fresh = fresh_nano(session, self._user_id, now_ns - rest_s * 10**9)
            available_nano = balance(session, chart.user_paid(self._user_id)).available_nano
            # Without fresh credits, the ledger itself refuses a user who has too little.
            if fresh and self._amount_nano > available_nano - fresh:
                raise PaymentInvalid("amount", _too_fresh(max(available_nano - fresh, 0), rest_s))
            payer.moving_until_ns = self._until_ns = now_ns + _TURN_NS

    def end(self) -> None:
        with self._context.write() as session, session.begin():
            payer = locked(session, self._user_id)
            if payer.moving_until_ns == self._until_ns:
                payer.moving_until_ns = 0


def _too_fresh(movable_nano: int, rest_s: int) -> str:
    days = rest_s / 86_400
    return f"credits bought in the last {days:g} days stay with you: {format_usd(movable_nano)} can be moved now"

"""All of payments put together: what the gateway holds, and what it lets run now and then."""

from dataclasses import dataclass

from accounting.payments.bank import Bank
from accounting.payments.desk import Desk
from accounting.payments.disputes import Disputes
from accounting.payments.inbox import Inbox
from accounting.payments.payers import Payers
from accounting.payments.payouts import Payouts
from accounting.payments.reconciliation import Reconciliation
from accounting.payments.refunds import Refunds
from accounting.payments.sellers import Sellers
from accounting.payments.topups import Topups
from accounting.payments.worker import Handler, Worker


@dataclass(frozen=True, slots=True)
class Payments:
    inbox: Inbox
    worker: Worker
    payers: Payers
    topups: Topups
    refunds: Refunds
    disputes: Disputes
    sellers: Sellers
    payouts: Payouts
    bank: Bank
    reconciliation: Reconciliation

    def tick(self) -> None:
        """Work the inbox off and go on with what stands still; every few seconds, from one thread."""
        self.worker.run()
        self.topups.resume()
        self.topups.run_auto()
        self.refunds.resume()
        self.payouts.resume()


def open_payments(desk: Desk, inbox: Inbox, *, grace_s: float | None = None) -> Payments:
    payers, sellers, bank = Payers(desk), Sellers(desk), Bank(desk)
    topups, payouts = Topups(desk, payers), Payouts(desk, sellers)
    refunds, disputes = Refunds(desk, topups), Disputes(desk, payers, topups)

    def payout_changed(account: str, object_id: str) -> None:
        if account:
            payouts.payout_changed(account, object_id)
        else:
            bank.changed(object_id)

    handlers: dict[str, Handler] = {
        "checkout.session.": lambda _, object_id: topups.session_changed(object_id),
        "payment_intent.": lambda _, object_id: topups.intent_changed(object_id),
        "refund.": lambda _, object_id: refunds.changed(object_id),
        "charge.dispute.": lambda _, object_id: disputes.changed(object_id),
        "transfer.": lambda _, object_id: payouts.transfer_changed(object_id),
        "payout.": payout_changed,
        "account.updated": lambda _, object_id: sellers.changed(object_id),
    }
    reconciliation = Reconciliation(desk) if grace_s is None else Reconciliation(desk, grace_s)
    return Payments(
        inbox=inbox,
        worker=Worker(desk, handlers),
        payers=payers,
        topups=topups,
        refunds=refunds,
        disputes=disputes,
        sellers=sellers,
        payouts=payouts,
        bank=bank,
        reconciliation=reconciliation,
    )

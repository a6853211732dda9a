"""Define the posting rules of payments: pure functions that turn each of Stripe's actions into an event.

An event's key names its Stripe object, so repeated messages book it only once. Its `ref` names the subject by
which the reconciliation compares Stripe's balance transactions with our events. `debit -> credit` reads as in
`accounting.rules`.
"""

from accounting import chart
from accounting.ledger.postings import EventKind, Leg, Posting
from accounting.payments.terms import Quote
from accounting.rules.moves import moved

NEVER_NS = 2**61
"""When pending transfers of payments expire: never, because only Stripe's answer resolves them."""


def topup(intent_id: str, topup_id: str, user_id: str, paid: Quote) -> Posting:
    """Book a payment: `asset:stripe -> user:paid` for the credits, `-> income:topup_fee` for the rest."""
    legs = (
        Leg(chart.ASSET_STRIPE, chart.user_paid(user_id), paid.credit_nano),
        *moved(chart.ASSET_STRIPE, chart.INCOME_TOPUP_FEE, paid.fee_nano),
    )
    return Posting(f"stripe:{intent_id}", "topup", intent_id, legs, {"topup": topup_id})


def stripe_fee(txn_id: str, subject: str, fee_nano: int) -> Posting:
    """Book what Stripe keeps of a payment, by its balance transaction: `expense:stripe_fee -> asset:stripe`."""
    legs = moved(chart.EXPENSE_STRIPE_FEE, chart.ASSET_STRIPE, fee_nano)
    return Posting(f"stripe:{txn_id}", "stripe_fee", subject, legs)


def refund_hold(subject: str, user_id: str, amount_nano: int) -> Posting:
    """Reserve the credits of a refund before Stripe is asked: pending `user:paid -> asset:stripe`."""
    leg = Leg(chart.user_paid(user_id), chart.ASSET_STRIPE, amount_nano, "pending", expires_ns=NEVER_NS)
    return Posting(f"rf:{subject}:hold", "topup_refund", subject, (leg,))


def refund_done(subject: str, user_id: str, amount_nano: int, pending_seq: int) -> Posting:
    leg = Leg(chart.user_paid(user_id), chart.ASSET_STRIPE, amount_nano, "post", pending_seq)
    return Posting(f"rf:{subject}", "topup_refund", subject, (leg,))


def refund_void(subject: str, user_id: str, pending_seq: int) -> Posting:
    leg = Leg(chart.user_paid(user_id), chart.ASSET_STRIPE, 0, "void", pending_seq)
    return Posting(f"rf:{subject}:void", "topup_refund", subject, (leg,))


def refund_returned(subject: str, user_id: str, amount_nano: int) -> Posting:
    """Book that a successful refund came back from the customer's bank: `asset:stripe -> user:paid`."""
    leg = Leg(chart.ASSET_STRIPE, chart.user_paid(user_id), amount_nano)
    return Posting(f"rf:{subject}:back", "topup_refund", subject, (leg,))


def refund_elsewhere(refund_id: str, user_id: str, paid_nano: int, owed_nano: int) -> Posting:
    """Book a refund made on Stripe's own pages: take the user's credits, and book the rest as a debt."""
    return Posting(f"rf:{refund_id}", "topup_refund", refund_id, _taken_back(user_id, paid_nano, owed_nano))


def refund_elsewhere_returned(refund_id: str, user_id: str, paid_nano: int, owed_nano: int) -> Posting:
    """Book that such a refund came back from the bank: settle the user's debt of it, the rest is credits."""
    return Posting(f"rf:{refund_id}:back", "topup_refund", refund_id, _given_back(user_id, paid_nano, owed_nano))


def dispute_withdrawn(dispute_id: str, user_id: str, paid_nano: int, owed_nano: int, fee_nano: int) -> Posting:
    """Book that a bank took a payment back: `user:paid -> asset:stripe`, the rest as a debt. We bear the fee."""
    fee = moved(chart.EXPENSE_DISPUTE_FEE, chart.ASSET_STRIPE, fee_nano)
    legs = (*_taken_back(user_id, paid_nano, owed_nano), *fee)
    return Posting(f"dp:{dispute_id}:withdrawn", "dispute", dispute_id, legs)


def dispute_reinstated(
    dispute_id: str, user_id: str, paid_nano: int, owed_nano: int, fee_nano: int = 0
) -> Posting:
    """Reverse a withdrawal after a dispute was won. `fee_nano` is what Stripe returns of its fee."""
    fee = moved(chart.ASSET_STRIPE, chart.EXPENSE_DISPUTE_FEE, fee_nano)
    legs = (*_given_back(user_id, paid_nano, owed_nano), *fee)
    return Posting(f"dp:{dispute_id}:reinstated", "dispute", dispute_id, legs)


def dispute_lost(dispute_id: str, user_id: str, owed_nano: int) -> Posting:
    """Write off what the user still owes of a lost dispute: `expense:bad_debt -> asset:user_recv`."""
    legs = moved(chart.EXPENSE_BAD_DEBT, chart.user_receivable(user_id), owed_nano)
    return Posting(f"dp:{dispute_id}:lost", "dispute", dispute_id, legs)


def payout_hold(subject: str, seller_id: str, amount_nano: int) -> Posting:
    """Reserve a seller's earnings before the transfer: pending `seller:payable -> asset:stripe`."""
    leg = Leg(chart.seller_payable(seller_id), chart.ASSET_STRIPE, amount_nano, "pending", expires_ns=NEVER_NS)
    return Posting(f"pay:{subject}:hold", "payout", subject, (leg,))


def payout_sent(subject: str, seller_id: str, amount_nano: int, pending_seq: int) -> Posting:
    leg = Leg(chart.seller_payable(seller_id), chart.ASSET_STRIPE, amount_nano, "post", pending_seq)
    return Posting(f"pay:{subject}", "payout", subject, (leg,))


def payout_void(subject: str, seller_id: str, pending_seq: int) -> Posting:
    leg = Leg(chart.seller_payable(seller_id), chart.ASSET_STRIPE, 0, "void", pending_seq)
    return Posting(f"pay:{subject}:void", "payout", subject, (leg,))


def payout_reversed(reversal_id: str, seller_id: str, amount_nano: int) -> Posting:
    """Book that Stripe reversed a transfer, whole or in part: `asset:stripe -> seller:payable`."""
    leg = Leg(chart.ASSET_STRIPE, chart.seller_payable(seller_id), amount_nano)
    return Posting(f"trr:{reversal_id}", "payout", reversal_id, (leg,))


def bank_payout(payout_id: str, amount_nano: int) -> Posting:
    """Book that the gateway's own money leaves Stripe for its bank: `asset:stripe_in_transit -> asset:stripe`."""
    return _bank(f"po:{payout_id}", payout_id, chart.ASSET_STRIPE_IN_TRANSIT, chart.ASSET_STRIPE, amount_nano)


def bank_payout_arrived(payout_id: str, amount_nano: int) -> Posting:
    in_transit = chart.ASSET_STRIPE_IN_TRANSIT
    return _bank(f"po:{payout_id}:paid", payout_id, chart.ASSET_BANK, in_transit, amount_nano)


def bank_payout_failed(payout_id: str, amount_nano: int, *, was_there: bool) -> Posting:
    """Book that the money is back at Stripe, from in transit or, if it had arrived, from the bank."""
    came_from = chart.ASSET_BANK if was_there else chart.ASSET_STRIPE_IN_TRANSIT
    return _bank(f"po:{payout_id}:failed", payout_id, chart.ASSET_STRIPE, came_from, amount_nano)


def _bank(key: str, payout_id: str, debit: str, credit: str, amount_nano: int) -> Posting:
    return Posting(key, "bank_payout", payout_id, (Leg(debit, credit, amount_nano),))


def suspense(subject: str, number: int, gained_nano: int) -> Posting:
    """Make `asset:stripe` equal Stripe's balance until an admin finds the cause: `asset:stripe <-> suspense`.

    `gained_nano` is how much more Stripe has than the ledger; it is negative if Stripe has less. `number` counts
    the moves of a subject, so that each has its key.
    """
    legs = (
        moved(chart.ASSET_STRIPE, chart.SUSPENSE, gained_nano)
        if gained_nano > 0
        else moved(chart.SUSPENSE, chart.ASSET_STRIPE, -gained_nano)
    )
    kind: EventKind = "suspense"
    return Posting(f"sus:{subject}:{number}", kind, subject, legs)


def _taken_back(user_id: str, paid_nano: int, owed_nano: int) -> tuple[Leg, ...]:
    return (
        *moved(chart.user_paid(user_id), chart.ASSET_STRIPE, paid_nano),
        *moved(chart.user_receivable(user_id), chart.ASSET_STRIPE, owed_nano),
    )


def _given_back(user_id: str, paid_nano: int, owed_nano: int) -> tuple[Leg, ...]:
    return (
        *moved(chart.ASSET_STRIPE, chart.user_paid(user_id), paid_nano),
        *moved(chart.ASSET_STRIPE, chart.user_receivable(user_id), owed_nano),
    )

"""Define the posting rules of requests to cloud providers: pure functions turn each business event into transfers.

The key of an event is derived from its subject, so sending an event again only finds it booked. In the docstrings,
`debit -> credit` means from the debited account to the credited one.
"""

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from accounting import chart
from accounting.ledger.postings import MAX_TEXT, EventKind, Leg, Posting, UsageRecord
from accounting.money import checked_nano
from accounting.rules.held import CloudBill, Hold
from accounting.rules.local import worked
from accounting.rules.moves import moved
from accounting.rules.parts import HeldPart, Share, pay_unheld, reserve_funds, take


def hold(request_id: str, user_id: str, amount_nano: int, expires_ns: int) -> Posting:
    """Reserve the most that a cloud request may cost: pending `user:paid -> clearing:burst`."""
    leg = Leg(
        chart.user_paid(user_id),
        chart.CLEARING_BURST,
        checked_nano(amount_nano),
        phase="pending",
        expires_ns=expires_ns,
    )
    return Posting(f"hold:{request_id}", "hold", request_id, (leg,))


def capture(held: Hold, bill: CloudBill, usage: UsageRecord | None = None) -> Posting:
    """Charge what was delivered from the hold, and owe the provider its share.

    The caller never pays more than the hold. A provider's bill beyond the charge is our variance. The usage row is
    booked with the charge and cost of this event, which replace its own.
    """
    charge_nano = min(bill.charge_nano, held.amount_nano)
    taken = Leg(held.account, chart.CLEARING_BURST, charge_nano, phase="post", pending_seq=held.pending_seq)
    return _captured("capture", held, (taken,), bill, charge_nano, usage)


def late_capture(
    held: Hold, bill: CloudBill, usage: UsageRecord | None = None, *, covered_nano: int = 0
) -> Posting:
    """Book text that was delivered after the reaper had released its hold: at most the hold's amount.

    `covered_nano` comes from credits that the user still has, `user:paid -> clearing:burst`. The user owes the
    rest, `asset:user_recv -> clearing:burst`. Everything else is as in `capture`. It has the key of the capture
    too, so a request is captured once, in time or late. The ledger takes it only after the reaper's release.
    """
    charge_nano = min(bill.charge_nano, held.amount_nano)
    covered = (Share(held.account, covered_nano),)
    return _captured("late", held, _unheld(held, charge_nano, covered), bill, charge_nano, usage)


def owed_capture(held: Hold, bill: CloudBill, usage: UsageRecord, covered: Sequence[Share] = ()) -> Posting:
    """Book text whose hold was part of a lease that is gone: like `late_capture`, but without a reaper's event.

    The user owes what `covered` does not pay, even if the lease used a pool's credits.
    """
    charge_nano = min(bill.charge_nano, held.amount_nano)
    return _captured("owed", held, _unheld(held, charge_nano, covered), bill, charge_nano, usage)


def _unheld(held: Hold, charge_nano: int, covered: Sequence[Share]) -> tuple[Leg, ...]:
    """Return the transfers of a charge without a hold."""
    return pay_unheld(charge_nano, covered, chart.user_receivable(held.user_id), chart.CLEARING_BURST)


def lease(
    name: str,
    parts: Sequence[HeldPart],
    ended: Sequence[tuple[CloudBill | None, UsageRecord]],
    shares: Sequence[Share] = (),
    *,
    expires_ns: int,
) -> Posting:
    """Charge the requests of a lease that ended, and reserve `shares` for running and coming ones.

    `parts` are what the lease's last event reserved. They are resolved whole: posted in their order up to the sum
    of the charges. The rest is free for a moment, and the last legs reserve it again, in the same or another
    amount. A bill's charge is within its request's reservation, so all charges are within the parts. The ledger
    refuse anything beyond, since the clearing account would pay it. A request without a bill is not charged. The
    usage rows are booked with the charges and costs of this event.
    """
    bills = [bill for bill, _ in ended if bill is not None]
    charge_nano = sum(bill.charge_nano for bill in bills)
    held_nano = sum(part.amount_nano for part in parts)
    usages = [
        replace(usage, charge_nano=bill.charge_nano, cost_nano=bill.cost_nano) if bill else usage
        for bill, usage in ended
    ]
    legs = (
        *take(parts, chart.CLEARING_BURST, min(charge_nano, held_nano)),
        *_shared(bills),
        *worked(usages),
        *reserve_funds(shares, chart.CLEARING_BURST, expires_ns),
    )
    prices = ",".join(sorted({bill.price_version for bill in bills if bill.price_version}))
    meta = {"price": prices[:MAX_TEXT]} if prices else {}
    return Posting(f"lease:{name}", "lease", name, legs, meta, tuple(usages))


def _shared(bills: Sequence[CloudBill]) -> list[Leg]:
    """Pay out what bills brought into the clearing account, one sum per provider."""
    covered: Counter[str] = Counter()
    beyond: Counter[str] = Counter()
    margin_nano = 0
    for bill in bills:
        covered_nano = min(bill.charge_nano, bill.cost_nano)
        covered[bill.provider] += covered_nano
        beyond[bill.provider] += bill.cost_nano - covered_nano
        margin_nano += bill.charge_nano - covered_nano
    legs = list(moved(chart.CLEARING_BURST, chart.INCOME_BURST_MARGIN, margin_nano))
    for provider in covered:
        owed = chart.provider_accrued(provider)
        legs += moved(chart.CLEARING_BURST, owed, covered[provider])
        legs += moved(chart.EXPENSE_BURST_VARIANCE, owed, beyond[provider])
    return legs


def _captured(
    kind: EventKind,
    held: Hold,
    paid: tuple[Leg, ...],
    bill: CloudBill,
    charge_nano: int,
    usage: UsageRecord | None,
) -> Posting:
    """Pay out what came into the clearing account: the cost to the provider, the rest to the margin."""
    owed = chart.provider_accrued(bill.provider)
    covered_nano = min(charge_nano, bill.cost_nano)
    legs = (
        *paid,
        *moved(chart.CLEARING_BURST, owed, covered_nano),
        *moved(chart.CLEARING_BURST, chart.INCOME_BURST_MARGIN, charge_nano - covered_nano),
        *moved(chart.EXPENSE_BURST_VARIANCE, owed, bill.cost_nano - covered_nano),
    )
    if usage is not None:
        assert usage.request_id == held.request_id, "a request is paid from its own hold"
        usage = replace(usage, charge_nano=charge_nano, cost_nano=bill.cost_nano)
    meta = {"price": bill.price_version} if bill.price_version else {}
    return Posting(f"cap:{held.request_id}", kind, held.request_id, legs, meta, _only(usage))


def release(held: Hold, usage: UsageRecord | None = None) -> Posting:
    """Release a whole hold: no provider delivered anything, and nothing is charged.

    If own machines answered instead, the compute that they spent is booked with it.
    """
    legs = (_given_back(held), *worked(_only(usage)))
    return Posting(f"void:{held.request_id}", "release", held.request_id, legs, usages=_only(usage))


def reap(ref: str, parts: Sequence[HeldPart], clearing: str = chart.CLEARING_BURST) -> Posting:
    """Release all that an event reserved for a request or a lease that died."""
    return Posting(f"reap:{ref}", "reap", ref, take(parts, clearing, 0))


def _given_back(held: Hold) -> Leg:
    return Leg(held.account, chart.CLEARING_BURST, 0, phase="void", pending_seq=held.pending_seq)


def _only(usage: UsageRecord | None) -> tuple[UsageRecord, ...]:
    return () if usage is None else (usage,)

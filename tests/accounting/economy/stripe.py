"""Wishes about what Stripe does: money in and back, disputes, payouts. Pure postings, no Stripe."""

from collections.abc import Callable

from accounting.ledger.postings import Posted, Posting
from accounting.payments import rules
from accounting.payments.terms import Quote
from tests.accounting.economy.model import Shares
from tests.accounting.economy.world import SELLERS, Attempt, Known, World, known, moves

STRIPE = "asset:stripe"


def topup(world: World) -> Attempt:
    user, intent = world.user(), world.name("pi_")
    credit, fee = world.amount(), world.chance.choice((0, world.amount()))
    deltas = {STRIPE: credit + fee, f"user:{user}:paid": credit, "income:topup_fee": fee}
    return moves(rules.topup(intent, f"t-{intent}", user, Quote(credit, fee)), deltas)


def stripe_fee(world: World) -> Attempt:
    fee = world.amount()
    return moves(rules.stripe_fee(world.name("txn_"), "pi_1", fee), {"expense:stripe_fee": fee, STRIPE: -fee})


def refund_held(world: World) -> Attempt:
    user = world.user()
    make = rules.refund_hold
    return _put_aside(world, world.refunds, user, f"user:{user}:paid", "rf", make)


def refund_resolved(world: World) -> Attempt | None:
    """Stripe answers, sometimes more than once and not always the same."""
    refund = world.recent(world.refunds, "stripe")
    return _resolved(world, refund, "rf", rules.refund_done, rules.refund_void) if refund else None


def refund_elsewhere(world: World) -> Attempt:
    user, amount = world.user(), world.amount()
    paid, owed, deltas = _taken_back(world, user, amount)
    return moves(rules.refund_elsewhere(world.name("re_"), user, paid, owed), deltas)


def dispute(world: World) -> Attempt:
    user, amount, fee = world.user(), world.amount(), world.chance.choice((0, 15))
    paid, owed, deltas = _taken_back(world, user, amount)
    posting = rules.dispute_withdrawn(world.name("dp_"), user, paid, owed, fee)
    return moves(posting, deltas | {"expense:dispute_fee": fee, STRIPE: -amount - fee})


def dispute_won(world: World) -> Attempt:
    user, amount = world.user(), world.amount()
    owed = min(amount, world.model.left(f"asset:user_recv:{user}"))
    deltas = {STRIPE: amount, f"user:{user}:paid": amount - owed, f"asset:user_recv:{user}": -owed}
    return moves(rules.dispute_reinstated(world.name("dp_"), user, amount - owed, owed), deltas)


def dispute_lost(world: World) -> Attempt | None:
    user = world.user()
    owed = world.model.left(f"asset:user_recv:{user}")
    if not owed:
        return None
    deltas = {"expense:bad_debt": owed, f"asset:user_recv:{user}": -owed}
    return moves(rules.dispute_lost(world.name("dp_"), user, owed), deltas)


def payout_held(world: World) -> Attempt:
    seller = world.seller()
    return _put_aside(world, world.payouts, seller, f"seller:{seller}:payable", "pay", rules.payout_hold)


def payout_resolved(world: World) -> Attempt | None:
    payout = world.recent(world.payouts, "stripe")
    return _resolved(world, payout, "pay", rules.payout_sent, rules.payout_void) if payout else None


def payout_reversed(world: World) -> Attempt:
    seller, amount = world.chance.choice(SELLERS), world.amount()
    posting = rules.payout_reversed(world.name("trr_"), seller, amount)
    return moves(posting, {STRIPE: amount, f"seller:{seller}:payable": amount})


def bank_payout(world: World) -> Attempt:
    """On its way, there, or back again from either."""
    name, amount, transit = world.name("po_"), world.amount(), "asset:stripe_in_transit"
    return world.chance.choice(
        (
            moves(rules.bank_payout(name, amount), {transit: amount, STRIPE: -amount}),
            moves(rules.bank_payout_arrived(name, amount), {"asset:bank": amount, transit: -amount}),
            moves(rules.bank_payout_failed(name, amount, was_there=False), {STRIPE: amount, transit: -amount}),
            moves(rules.bank_payout_failed(name, amount, was_there=True), {STRIPE: amount, "asset:bank": -amount}),
        )
    )


def suspense(world: World) -> Attempt:
    gained = world.chance.choice((1, -1)) * world.amount()
    return moves(rules.suspense(world.name("pi_"), 1, gained), {STRIPE: gained, "suspense": gained})


def _put_aside(
    world: World,
    remembered: list[Known],
    owner: str,
    account: str,
    prefix: str,
    make: Callable[[str, str, int], Posting],
) -> Attempt:
    name = world.name(prefix)
    parts: Shares = ((account, world.part_of(account)),)

    def then(posted: Posted) -> None:
        remembered.append(known(name, parts, posted, owner=owner, lane="stripe", expires_ns=rules.NEVER_NS))

    return Attempt(
        lambda model: model.reserve_funds(f"{prefix}:{name}:hold", name, parts, STRIPE, rules.NEVER_NS),
        make(name, owner, parts[0][1]),
        then,
    )


def _resolved(
    world: World,
    held: Known,
    prefix: str,
    done: Callable[[str, str, int, int], Posting],
    void: Callable[[str, str, int], Posting],
) -> Attempt:
    seq, amount = held.parts[0].pending_seq, held.amount
    if world.chance.random() < 0.4:
        return Attempt(
            lambda model: model.release(f"{prefix}:{held.name}:void", held.name), void(held.name, held.owner, seq)
        )
    return Attempt(
        lambda model: model.take(f"{prefix}:{held.name}", "done", held.name, amount, {STRIPE: -amount}),
        done(held.name, held.owner, amount, seq),
    )


def _taken_back(world: World, user: str, amount: int) -> tuple[int, int, dict[str, int]]:
    paid = min(amount, max(0, world.model.left(f"user:{user}:paid")))
    owed = amount - paid
    return paid, owed, {STRIPE: -amount, f"user:{user}:paid": -paid, f"asset:user_recv:{user}": owed}


STRIPES = {
    topup: 40,
    stripe_fee: 8,
    refund_held: 8,
    refund_resolved: 8,
    refund_elsewhere: 2,
    dispute: 3,
    dispute_won: 3,
    dispute_lost: 2,
    payout_held: 14,
    payout_resolved: 8,
    payout_reversed: 2,
    bank_payout: 4,
    suspense: 2,
}

"""Wishes about credits: bought from the operator, given, pooled, expired, corrected, owed."""

from accounting.rules import corrections, debts, grants, invoices
from tests.accounting.economy.world import POOL, PROVIDER, SELLERS, Attempt, World, moves

GRANTS_MAX = 60


def credit(world: World) -> Attempt:
    user, amount = world.user(), world.amount()
    posting = grants.manual_credit(world.name("c"), user, amount, "test")
    return moves(posting, {"asset:bank": amount, f"user:{user}:paid": amount})


def pool_credit(world: World) -> Attempt:
    amount = world.amount()
    posting = grants.pool_credit(world.name("c"), POOL, amount, "test")
    return moves(posting, {"asset:bank": amount, f"pool:{POOL}:paid": amount})


def pool_funded(world: World) -> Attempt:
    user = world.user()
    amount = world.part_of(f"user:{user}:paid")
    posting = grants.pool_funded(world.name("m"), user, POOL, amount)
    return moves(posting, {f"user:{user}:paid": -amount, f"pool:{POOL}:paid": amount})


def pool_returned(world: World) -> Attempt:
    user, amount = world.user(), world.part_of(f"pool:{POOL}:paid")
    posting = grants.pool_returned(world.name("m"), POOL, user, amount)
    return moves(posting, {f"pool:{POOL}:paid": -amount, f"user:{user}:paid": amount})


def promo(world: World) -> Attempt | None:
    if len(world.credit_grants) >= GRANTS_MAX:
        return None
    user, grant_id, amount = world.user(), world.name("grant"), world.amount()
    deltas = {"expense:promo": amount, f"user:{user}:promo:{grant_id}": amount}
    return moves(
        grants.promo(grant_id, user, amount, "test"),
        deltas,
        lambda _: world.credit_grants.append((user, grant_id)),
    )


def expire(world: World) -> Attempt | None:
    """Expire what no hold reserves; a grant with open holds expires again after they are resolved."""
    if not world.credit_grants:
        return None
    user, grant_id = world.chance.choice(world.credit_grants)
    account = f"user:{user}:promo:{grant_id}"
    amount = world.model.left(account)
    if amount <= 0:
        return None
    posting = grants.expire(grant_id, user, amount, world.number)
    world.number += 1
    return moves(posting, {account: -amount, "income:breakage": amount})


def goodwill(world: World) -> Attempt:
    user, amount = world.user(), world.amount()
    posting = grants.goodwill(world.name("g"), user, amount, "late")
    return moves(posting, {"expense:goodwill": amount, f"user:{user}:paid": amount})


def correction(world: World) -> Attempt:
    """Credits that went to the wrong user."""
    wrong, right = world.user(), "dan"
    amount = world.part_of(f"user:{wrong}:paid")
    posting = corrections.correction(world.name("i"), f"user:{wrong}:paid", f"user:{right}:paid", amount)
    return moves(posting, {f"user:{wrong}:paid": -amount, f"user:{right}:paid": amount})


def settled(world: World) -> Attempt | None:
    user = world.user()
    debt, paid = f"asset:user_recv:{user}", f"user:{user}:paid"
    owed, left = world.model.left(debt), world.model.left(paid)
    amount = min(owed, left)
    if amount <= 0:
        return None
    return moves(debts.settled(world.name("d"), user, owed, left), {paid: -amount, debt: -amount})


def settled_by_seller(world: World) -> Attempt | None:
    left = world.model.left
    for seller in SELLERS:
        debt, earned = f"asset:seller_recv:{seller}", f"seller:{seller}:payable"
        amount = min(left(debt), left(earned))
        if amount > 0:
            posting = debts.settled_by_seller(world.name("d"), seller, left(debt), left(earned))
            return moves(posting, {earned: -amount, debt: -amount})
    return None


def written_off(world: World) -> Attempt | None:
    debt = f"asset:user_recv:{world.user()}"
    if not world.model.left(debt):
        return None
    amount = world.part_of(debt)
    posting = debts.written_off(world.name("w"), debt, amount, "gone")
    return moves(posting, {"expense:bad_debt": amount, debt: -amount})


def invoice(world: World) -> Attempt:
    accrued = min(max(0, world.model.left(f"provider:{PROVIDER}:accrued")), 10**12)
    billed = max(0, accrued + world.chance.randint(-5, 5))
    posting = invoices.invoice_paid(PROVIDER, world.name("inv"), accrued, billed)
    deltas = {
        f"provider:{PROVIDER}:accrued": -accrued,
        "asset:bank": -billed,
        "expense:burst_variance": billed - accrued,
    }
    return moves(posting, deltas)


CREDITS = {
    credit: 30,
    pool_credit: 12,
    pool_funded: 6,
    pool_returned: 3,
    promo: 4,
    expire: 2,
    goodwill: 4,
    correction: 4,
    settled: 12,
    settled_by_seller: 16,
    written_off: 3,
    invoice: 4,
}

"""Wishes about the market: bought, delivered, matured, given back."""

from collections import Counter

from accounting.ledger.postings import HOLD_GRACE_NS, Posted, Posting
from accounting.rules import earnings, market, usage_refunds
from accounting.rules.parts import Share
from accounting.spending.charges import find_charge, find_refund_parties
from tests.accounting.economy.model import Charge, Shares, taken
from tests.accounting.economy.world import GREEDY, POOL, SELLERS, Attempt, Known, World, known, moves
from tests.accounting.ledgers import MINUTE_NS, usage

FEES_BPS = (0, 1, 500, 1000, 3333, 10_000)
PERCENTS = (0, 1, 50, 80, 100, 150)


def place(world: World) -> Attempt | None:
    user, name = world.user(), world.name("r")
    parts = world.funding((f"pool:{POOL}:paid", f"user:{user}:paid"))
    expires_ns = world.ledger.now_ns + MINUTE_NS + HOLD_GRACE_NS
    if not parts:
        return None

    def then(posted: Posted) -> None:
        world.holds.append(known(name, parts, posted, owner=user, lane="market", expires_ns=expires_ns))

    return Attempt(
        lambda model: model.reserve_funds(f"hold:{name}", name, parts, "clearing:market", expires_ns),
        market.hold(name, [Share(*part) for part in parts], expires_ns),
        then,
    )


def capture(world: World) -> Attempt | None:
    hold = world.recent(world.holds, "market")
    if hold is None:
        return None
    sale = _sale(world, hold)
    charge = min(sale.charge_nano, hold.amount)
    fee = charge * sale.fee_bps // 10_000
    deltas = {f"seller:{sale.seller_id}:maturing": charge - fee, "income:market_fee": fee}
    content = ("purchase", _named(sale, charge, fee), charge, fee)
    paid = taken(tuple((part.account, part.amount_nano) for part in hold.parts), charge)
    return Attempt(
        lambda model: model.capture(f"cap:{hold.name}", content, hold.name, charge, deltas),
        market.capture(_order(hold), sale, usage(hold.name, lane="market")),
        lambda _: _sold(world, hold, sale.seller_id, charge, fee, paid),
    )


def release(world: World) -> Attempt | None:
    hold = world.recent(world.holds, "market")
    if hold is None:
        return None
    return Attempt(lambda model: model.release(f"void:{hold.name}", hold.name), market.release(_order(hold)))


def mature(world: World) -> Attempt:
    seller, day = world.seller(), world.name("day")
    amount, bps = world.part_of(f"seller:{seller}:maturing"), world.chance.choice((0, 1000, 10_000))
    kept = amount * bps // 10_000
    deltas = {
        f"seller:{seller}:maturing": -amount,
        f"seller:{seller}:payable": amount - kept,
        f"seller:{seller}:reserve": kept,
    }
    return moves(earnings.matured(seller, day, amount, bps), deltas)


def reserve_released(world: World) -> Attempt:
    seller, day = world.seller(), world.name("day")
    amount = world.part_of(f"seller:{seller}:reserve")
    deltas = {f"seller:{seller}:reserve": -amount, f"seller:{seller}:payable": amount}
    return moves(earnings.reserve_released(seller, day, amount), deltas)


def refund(world: World) -> Attempt | None:
    """A refund of what the ledger recorded: the code reads it there, the model remembers it here."""
    if not world.charged:
        return None
    # One seller gets more refunds than the others, and has nothing left of its earnings.
    bad = [one for one in world.charged[-200:] if GREEDY in world.model.charges[one].partner]
    request = world.chance.choice(world.charged[-200:] if world.chance.random() < 0.6 or not bad else bad)
    charge = world.model.charges[request]
    amount = world.chance.choice((charge.amount, max(1, charge.amount // 3)))
    is_credited = world.chance.random() < 0.5
    back = _back_to_payers(world, charge, amount)
    deltas = _given_back_by(world, charge, amount, is_credited=is_credited)
    for account, given in back.items():
        deltas[account] = deltas.get(account, 0) + (-given if account.startswith("asset:") else given)
    return moves(_refund_posting(world, request, amount, is_credited=is_credited), deltas)


def _refund_posting(world: World, request: str, amount: int, *, is_credited: bool) -> Posting:
    with world.ledger.read() as session:
        charge = find_charge(session, request)
        assert charge is not None
        standing = find_refund_parties(session, charge, world.ledger.now_ns)
    return usage_refunds.refund(charge, amount, "bad answer", standing, provider_credits=is_credited)


def _given_back_by(world: World, charge: Charge, amount: int, *, is_credited: bool) -> dict[str, int]:
    """All give back in proportion: the marketplace its fee, rounded down, the seller or provider the rest."""
    ours = amount * (charge.amount - charge.partner_got) // charge.amount
    theirs = amount - ours
    if charge.lane == "market":
        return {"income:market_fee": -ours} | _from_seller(world, charge.partner.split(":")[1], theirs)
    if not is_credited:
        return {"income:burst_margin": -ours, "expense:goodwill": theirs}
    beyond = charge.beyond * amount // charge.amount
    return {
        "income:burst_margin": -ours,
        charge.partner: -theirs - beyond,
        "expense:burst_variance": -beyond,
    }


def _from_seller(world: World, seller: str, amount: int) -> dict[str, int]:
    deltas = {}
    for pocket in ("maturing", "payable", "reserve"):
        account = f"seller:{seller}:{pocket}"
        deltas[account] = -min(amount, world.model.left(account))
        amount += deltas[account]
    return deltas | {f"asset:seller_recv:{seller}": amount}


def _back_to_payers(world: World, charge: Charge, amount: int) -> Counter[str]:
    """Who paid last gets back first; a debt that is settled by now comes back as credits."""
    back: Counter[str] = Counter()
    for account, paid in reversed(charge.payers.items()):
        given = min(amount, paid)
        amount -= given
        if account.startswith("asset:user_recv:"):
            forgiven = min(given, world.model.left(account))
            back[f"user:{account.rpartition(':')[2]}:paid"] += given - forgiven
            given = forgiven
        back[account] += given
    assert amount == 0
    return back


def _sale(world: World, hold: Known) -> market.SellerBill:
    charge = min(hold.amount * world.chance.choice(PERCENTS) // 100, 10**15)
    return market.SellerBill(world.chance.choice(SELLERS), charge, world.chance.choice(FEES_BPS))


def _named(sale: market.SellerBill, charge: int, fee: int) -> str:
    """Who sold it is told by who is paid, and so by nothing where a seller gets nothing."""
    return sale.seller_id if charge > fee else ""


def _order(hold: Known) -> market.PurchaseHold:
    return market.PurchaseHold(hold.name, hold.parts)


def _sold(world: World, hold: Known, seller: str, charge: int, fee: int, paid: Shares) -> None:
    payers = {account: amount for account, amount in paid if amount}
    partner = f"seller:{seller}:maturing"
    world.remember_charge(hold.name, Charge("market", charge, partner, charge - fee, 0, payers))


MARKET = {place: 70, capture: 50, release: 10, mature: 20, reserve_released: 8, refund: 14}

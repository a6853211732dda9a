"""Wishes about allocations of the market: put aside for a seller, drawn turn by turn, in time and late."""

from dataclasses import dataclass, replace

from accounting.ledger.postings import HOLD_GRACE_NS, Posted
from accounting.rules import allocations, market
from accounting.rules.allocations import Allocated, Drawn
from accounting.rules.parts import HeldPart, Share
from tests.accounting.economy.market import FEES_BPS
from tests.accounting.economy.model import Charge, Shares, taken
from tests.accounting.economy.world import POOL, SELLERS, Attempt, Known, World, known
from tests.accounting.ledgers import MINUTE_NS

LASTS_NS = 4 * MINUTE_NS + HOLD_GRACE_NS


@dataclass(frozen=True)
class Open:
    """An allocation, how far it is drawn, and what is put aside of it still."""

    allocated: Allocated
    drawn: Drawn

    @property
    def name(self) -> str:
        return self.allocated.allocation_id


def allocate(world: World) -> Attempt | None:
    user, name = world.user(), world.name("a")
    parts = world.funding((f"pool:{POOL}:paid", f"user:{user}:paid"))
    expires_ns = world.ledger.now_ns + LASTS_NS
    if not parts:
        return None
    seller, bps = world.chance.choice(SELLERS), world.chance.choice(FEES_BPS)
    limit = sum(amount for _, amount in parts)

    def then(posted: Posted) -> None:
        held = known(name, parts, posted, owner=user, lane="market", expires_ns=expires_ns)
        allocated = Allocated(name, user, seller, limit, bps, expires_ns)
        world.allocations[name] = Open(allocated, Drawn(parts=held.parts))

    return Attempt(
        lambda model: model.reserve_funds(f"hold:{name}", name, parts, "clearing:market", expires_ns),
        market.hold(name, [Share(*part) for part in parts], expires_ns),
        then,
    )


def draw(world: World) -> Attempt | None:
    one = _recent(world, "open")
    if one is None:
        return None
    due = _due(world, one)
    posting = allocations.draw(one.allocated, one.drawn, due)
    if posting is None:
        return None
    more = due - one.drawn.amount_nano
    parts = tuple((part.account, part.amount_nano) for part in one.drawn.parts)
    paid, (deltas, net) = taken(parts, more), _paid_out(one, due)
    kept = tuple(
        (account, amount - out) for (account, amount), (_, out) in zip(parts, paid, strict=True) if amount > out
    )
    expires_ns = one.allocated.expires_ns

    def then(posted: Posted) -> None:
        held = known(one.name, kept, posted, owner=one.allocated.buyer_id, lane="", expires_ns=expires_ns)
        _remember(world, one, held, due, net, paid)

    return Attempt(
        lambda model: model.draw(posting.idem_key, ("draw", due, kept), one.name, more, deltas, kept, expires_ns),
        posting,
        then,
    )


def draw_late(world: World) -> Attempt | None:
    one = _recent(world, "reaped")
    if one is None:
        return None
    due, buyer = _due(world, one), one.allocated.buyer_id
    covered = tuple((account, amount // 2) for account, amount in world.funding([f"user:{buyer}:paid"]))
    posting = allocations.draw_late(one.allocated, one.drawn, due, covered=[Share(*share) for share in covered])
    if posting is None:
        return None
    more = due - one.drawn.amount_nano
    paid = taken(covered, more)
    owed = more - sum(amount for _, amount in paid)
    deltas, net = _paid_out(one, due)
    deltas |= {account: -amount for account, amount in paid} | {f"asset:user_recv:{buyer}": owed}
    paid = (*paid, (f"asset:user_recv:{buyer}", owed))

    def then(_: Posted) -> None:
        _remember(world, one, None, due, net, paid)

    return Attempt(
        lambda model: model.capture_late(posting.idem_key, ("late draw", due, paid), one.name, deltas),
        posting,
        then,
    )


def _recent(world: World, state: str) -> Open | None:
    """Mostly one without a draw in progress: two draws at once would have the same number."""
    some = [one for name, one in list(world.allocations.items())[-50:] if world.model.asides[name].state == state]
    free = [one for one in some if one.name not in world.busy]
    chosen = world.chance.choice(free if free and world.chance.random() < 0.9 else some) if some else None
    if chosen is not None:
        world.busy.add(chosen.name)
    return chosen


def _due(world: World, one: Open) -> int:
    left = one.allocated.limit_nano - one.drawn.amount_nano
    return one.drawn.amount_nano + (left if world.chance.random() < 0.1 else world.chance.randint(0, left))


def _paid_out(one: Open, due: int) -> tuple[dict[str, int], int]:
    """What seller and marketplace get of a draw: together always what the whole sum comes to."""
    bps, before = one.allocated.fee_bps, one.drawn.amount_nano
    fee = due * bps // 10_000 - before * bps // 10_000
    net = due - before - fee
    return {f"seller:{one.allocated.seller_id}:maturing": net, "income:market_fee": fee}, net


def _remember(world: World, one: Open, held: Known | None, due: int, net: int, paid: Shares) -> None:
    parts: tuple[HeldPart, ...] = held.parts if held else ()
    turns = one.drawn.turns + 1
    world.allocations[one.name] = replace(one, drawn=Drawn(turns, due, parts))
    payers = {account: amount for account, amount in paid if amount}
    partner = f"seller:{one.allocated.seller_id}:maturing"
    more = due - one.drawn.amount_nano
    world.remember_charge(f"{one.name}:{turns}", Charge("market", more, partner, net, 0, payers))


ALLOCATIONS = {allocate: 20, draw: 60, draw_late: 12}

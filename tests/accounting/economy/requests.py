"""Wishes about requests in the cloud and on own machines: holds, captures in time and late, leases."""

from collections import Counter

from accounting.ledger.postings import HOLD_GRACE_NS, Posted
from accounting.rules import burst, local, variances
from accounting.rules.held import CloudBill, Hold
from accounting.rules.parts import HeldPart, Share
from tests.accounting.economy.model import Charge, Model, Shares, taken
from tests.accounting.economy.world import POOL, PROVIDER, Attempt, Known, World, known, moves
from tests.accounting.ledgers import MINUTE_NS, usage

PERCENTS = (0, 1, 50, 80, 100, 150)
ENDED_MAX = 4
PROCESSES = 10


def place(world: World) -> Attempt:
    user, name = world.user(), world.name("r")
    account, expires_ns = f"user:{user}:paid", world.ledger.now_ns + MINUTE_NS + HOLD_GRACE_NS
    parts = ((account, world.part_of(account)),)

    def then(posted: Posted) -> None:
        world.holds.append(known(name, parts, posted, owner=user, lane="burst", expires_ns=expires_ns))

    return Attempt(
        lambda model: model.reserve_funds(f"hold:{name}", name, parts, "clearing:burst", expires_ns),
        burst.hold(name, user, parts[0][1], expires_ns),
        then,
    )


def capture(world: World) -> Attempt | None:
    hold = world.recent(world.holds, "burst")
    if hold is None:
        return None
    bill_nano, cost = _charge(world, hold.amount)
    charge = min(bill_nano, hold.amount)
    record = usage(hold.name, lane="cloud", provider=PROVIDER)
    return Attempt(
        lambda model: model.capture(
            f"cap:{hold.name}", ("capture", charge, cost), hold.name, charge, shared(charge, cost)
        ),
        burst.capture(_hold(hold), CloudBill(PROVIDER, bill_nano, cost), record),
        lambda _: _charged(world, hold, charge, cost, taken(_shares(hold), charge)),
    )


def capture_late(world: World) -> Attempt | None:
    hold = world.recent(world.holds, "burst", "reaped")
    if hold is None:
        return None
    bill_nano, cost = _charge(world, hold.amount)
    charge = min(bill_nano, hold.amount)
    covered = min(charge, world.part_of(f"user:{hold.owner}:paid")) if world.chance.random() < 0.7 else 0
    paid = ((f"user:{hold.owner}:paid", covered), (f"asset:user_recv:{hold.owner}", charge - covered))
    deltas = shared(charge, cost) | {paid[0][0]: -covered, paid[1][0]: charge - covered}
    record = usage(hold.name, lane="cloud", provider=PROVIDER)
    return Attempt(
        lambda model: model.capture_late(f"cap:{hold.name}", ("late", charge, cost, covered), hold.name, deltas),
        burst.late_capture(_hold(hold), CloudBill(PROVIDER, bill_nano, cost), record, covered_nano=covered),
        lambda _: _charged(world, hold, charge, cost, paid),
    )


def release(world: World) -> Attempt | None:
    hold = world.recent(world.holds, "burst")
    if hold is None:
        return None
    return Attempt(lambda model: model.release(f"void:{hold.name}", hold.name), burst.release(_hold(hold)))


def use(world: World) -> Attempt:
    name, amount = world.name("r"), world.chance.choice((0, world.amount()))
    lane = world.chance.choice(("cluster", "pool"))
    record = usage(name, department="lab", lane=lane, compute_nano=amount)
    deltas = {"cu:dept:lab": amount, f"cu:supply:{lane}": amount}
    return Attempt(lambda model: model.move(f"use:{name}", (lane, amount), deltas), local.local_use(record))


def uses(world: World) -> Attempt:
    records, deltas = [], Counter[str]()
    for lane in ("cluster", "pool", "cluster"):
        amount = world.chance.choice((0, world.amount()))
        records.append(usage(world.name("r"), department="lab", lane=lane, compute_nano=amount))
        deltas.update({"cu:dept:lab": amount, f"cu:supply:{lane}": amount})
    return moves(local.local_uses(records), deltas)


def owed(world: World) -> Attempt:
    """Text of a request whose lease is gone: paid by what there is of pool and own credits, the rest is owed."""
    user, name, most = world.user(), world.name("r"), world.amount()
    bill_nano, cost = _charge(world, most)
    charge = min(bill_nano, most)
    covered = world.funding((f"pool:{POOL}:paid", f"user:{user}:paid"))
    paid = taken(covered, charge)
    debt = charge - sum(amount for _, amount in paid)
    deltas = shared(charge, cost) | {account: -amount for account, amount in paid}
    hold = Known(name, (HeldPart(f"user:{user}:paid", most, 1),), user, "burst", world.ledger.now_ns)
    shares = [Share(*share) for share in covered]
    record = usage(name, lane="cloud", provider=PROVIDER)
    posting = burst.owed_capture(_hold(hold), CloudBill(PROVIDER, bill_nano, cost), record, shares)
    everybody = (*paid, (f"asset:user_recv:{user}", debt))
    return moves(
        posting,
        deltas | {f"asset:user_recv:{user}": debt},
        lambda _: _charged(world, hold, charge, cost, everybody),
    )


def owed_beyond(world: World) -> Attempt:
    """A seller is owed more for a request than its user was charged, or the request was not charged at all."""
    booked, beyond = world.chance.choice((0, world.amount())), world.amount()
    posting = variances.owed_beyond(world.name("r"), PROVIDER, booked, booked + beyond)
    return moves(posting, {f"provider:{PROVIDER}:accrued": beyond, "expense:burst_variance": beyond})


def roll(world: World) -> Attempt | None:
    """A lease's next event: what some of its requests came to, and what is put aside for the next ones."""
    user = world.user()
    slot = (user, world.chance.randrange(PROCESSES))
    lease, name = world.leases.get(slot), world.name("lease")
    if lease and lease.name in world.busy and world.chance.random() < 0.9:
        return None
    world.busy.add(lease.name if lease else name)
    credit_grants = [f"user:{user}:promo:{grant_id}" for owner, grant_id in world.credit_grants if owner == user]
    pays = [*credit_grants[:1], f"pool:{POOL}:paid", f"user:{user}:paid"]
    kept = world.funding(pays) if world.chance.random() < 0.9 else ()
    bills = _bills(world, lease.amount) if lease else {}
    charge, deltas = sum(bill.charge_nano for bill in bills.values()), _shared_together(bills)
    expires_ns = world.ledger.now_ns + 3 * MINUTE_NS
    posting = burst.lease(
        name,
        lease.parts if lease else (),
        [(bill, usage(request, lane="cloud", provider=PROVIDER)) for request, bill in bills.items()],
        [Share(*share) for share in kept],
        expires_ns=expires_ns,
    )

    def then(posted: Posted) -> None:
        world.leases.pop(slot, None)
        if kept:
            world.leases[slot] = known(name, kept, posted, owner=user, lane="burst", expires_ns=expires_ns)
        if lease:
            _charged_together(world, bills, taken(_shares(lease), charge))

    def ask(model: Model) -> str:
        content = ("lease", tuple(bills.items()), kept)
        last = lease.name if lease else None
        answer = model.roll(f"lease:{name}", content, last, charge, deltas, kept, expires_ns)
        if answer in ("HoldExpired", "AlreadyResolved"):
            world.leases.pop(slot, None)
        return answer

    return Attempt(ask, posting, then)


def shared(charge: int, cost: int) -> dict[str, int]:
    """Who gets a charge: the provider its cost, we what is left, or what is missing as an expense."""
    return {
        f"provider:{PROVIDER}:accrued": cost,
        "income:burst_margin": max(0, charge - cost),
        "expense:burst_variance": max(0, cost - charge),
    }


def _shared_together(bills: dict[str, CloudBill]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for bill in bills.values():
        sums.update(shared(bill.charge_nano, bill.cost_nano))
    return sums


def _bills(world: World, amount: int) -> dict[str, CloudBill]:
    bills: dict[str, CloudBill] = {}
    for _ in range(world.chance.randint(0, ENDED_MAX)):
        charge, cost = _charge(world, amount // ENDED_MAX)
        charge = min(charge, amount // ENDED_MAX)
        bills[world.name("r")] = CloudBill(PROVIDER, charge, cost)
    return bills


def _charge(world: World, most: int) -> tuple[int, int]:
    """What a request came to, sometimes more than was put aside for it, and what its provider asks."""
    charge = min(most * world.chance.choice(PERCENTS) // 100, 10**15)
    return charge, world.chance.choice((charge // 2, charge, min(charge + 7, 10**15)))


def _hold(hold: Known) -> Hold:
    return Hold(hold.name, hold.owner, hold.amount, hold.parts[0].pending_seq, hold.expires_ns)


def _shares(hold: Known) -> Shares:
    return tuple((part.account, part.amount_nano) for part in hold.parts)


def _charged(world: World, hold: Known, charge: int, cost: int, paid: Shares) -> None:
    _charged_together(world, {hold.name: CloudBill(PROVIDER, charge, cost)}, paid)


def _charged_together(world: World, bills: dict[str, CloudBill], paid: Shares) -> None:
    """Nano by nano, as it were: the requests of an event are paid in the order of their ids, by who pays first."""
    left = list(paid)
    for request, bill in sorted(bills.items()):
        payers, charge = dict[str, int](), bill.charge_nano
        for number, (account, amount) in enumerate(left):
            taken = min(amount, charge)
            if taken:
                payers[account] = payers.get(account, 0) + taken
            left[number] = (account, amount - taken)
            charge -= taken
        got = min(bill.charge_nano, bill.cost_nano)
        beyond = bill.cost_nano - got
        partner = f"provider:{PROVIDER}:accrued"
        world.remember_charge(request, Charge("burst", bill.charge_nano, partner, got, beyond, payers))


REQUESTS = {
    place: 90,
    capture: 60,
    capture_late: 26,
    release: 14,
    use: 30,
    uses: 8,
    owed: 8,
    owed_beyond: 8,
    roll: 60,
}

"""The economy's state, and its one rule: the ledger answers and contains what the model says."""

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from accounting.ledger.balances import ROWS_MAX, balances
from accounting.ledger.postings import Posted, Posting
from accounting.rules import grants
from accounting.rules.parts import HeldPart
from tests.accounting.economy.model import Charge, Deltas, Model, Shares
from tests.accounting.ledgers import ANSWER_S, MINUTE_NS, LedgerService, outcome

if TYPE_CHECKING:
    from tests.accounting.economy.allocations import Open

USERS = ("ann", "bob", "cleo")
SELLERS = ("sam", "sue", "tom")
GREEDY = "tom"
"""Always takes out all that he has, so that refunds find nothing there."""
POOL = "lab"
PROVIDER = "acme"
ATTEMPTS_REMEMBERED = 500
HOLDS_REMEMBERED = 250


@dataclass(frozen=True)
class Attempt:
    """An event as both sides see it: what the model is asked, and what is sent to the ledger."""

    ask: Callable[[Model], str]
    posting: Posting
    then: Callable[[Posted], None] | None = None


@dataclass(frozen=True)
class Known:
    """Something that was put aside, as its owner remembers it."""

    name: str
    parts: tuple[HeldPart, ...]
    owner: str
    lane: str
    expires_ns: int

    @property
    def amount(self) -> int:
        return sum(part.amount_nano for part in self.parts)


@dataclass
class World:
    """A ledger, its model, and what the economy remembers to act on later. One seed decides everything."""

    ledger: LedgerService
    chance: random.Random
    model: Model = field(default_factory=Model)
    attempts: list[Attempt] = field(default_factory=list)
    holds: list[Known] = field(default_factory=list)
    leases: dict[tuple[str, int], Known] = field(default_factory=dict)
    refunds: list[Known] = field(default_factory=list)
    payouts: list[Known] = field(default_factory=list)
    charged: list[str] = field(default_factory=list)
    allocations: dict[str, "Open"] = field(default_factory=dict)
    credit_grants: list[tuple[str, str]] = field(default_factory=list)
    busy: set[str] = field(default_factory=set)
    number: int = 0
    answers: dict[str, int] = field(default_factory=dict)

    def name(self, prefix: str) -> str:
        self.number += 1
        return f"{prefix}{self.number}"

    def user(self) -> str:
        return self.chance.choice(USERS)

    def seller(self) -> str:
        """Who wants money, which is often the same."""
        return self.chance.choice((*SELLERS, GREEDY, GREEDY))

    def amount(self) -> int:
        """Mostly small change, now and then a fortune."""
        return self.chance.randint(1, self.chance.choice((10, 1000, 1000, 10**6, 10**6, 10**12)))

    def part_of(self, account: str) -> int:
        """An amount that an account can afford; sometimes all of it, or a little more."""
        left = max(0, self.model.left(account))
        if account.startswith(f"seller:{GREEDY}:"):
            return min(left, 10**15) or 1
        if self.chance.random() < 0.03:
            return min(left + self.chance.choice((0, 0, 1, 9)), 10**15) or 1
        return max(1, min(self.chance.randint(0, left // self.chance.choice((8, 40, 200))), 10**15))

    def funding(self, accounts: Sequence[str]) -> Shares:
        """Parts of several accounts, of each what it can afford."""
        chosen = [account for account in accounts if self.model.left(account) > 0]
        return tuple((account, self.part_of(account)) for account in chosen[:3])

    def recent(self, holds: list[Known], lane: str, state: str = "open") -> Known | None:
        """A reservation: mostly an idle one in that state, sometimes any."""
        some = [hold for hold in holds[-HOLDS_REMEMBERED:] if hold.lane == lane]
        if self.chance.random() < 0.95:
            asides, busy = self.model.asides, self.busy
            some = [hold for hold in some if asides[hold.name].state == state and hold.name not in busy]
        chosen = self.chance.choice(some) if some else None
        if chosen is not None:
            self.busy.add(chosen.name)
        return chosen

    def remember_charge(self, request: str, charge: Charge) -> None:
        if charge.amount:
            self.model.charges[request] = charge
            self.charged.append(request)

    def send(self, attempts: Sequence[Attempt | None]) -> None:
        """Send events at once, so that they share transactions, and compare every answer with the model's."""
        sent = [(each, self.ledger.poster.submit(each.posting)) for each in attempts if each is not None]
        for attempt, future in sent:
            self._compare(attempt, future)
        self.attempts += [attempt for attempt, _ in sent]
        del self.attempts[:-ATTEMPTS_REMEMBERED]
        self.busy.clear()

    def _compare(self, attempt: Attempt, future: "Future[Posted]") -> None:
        expected = attempt.ask(self.model)
        assert outcome(future) == expected, (attempt.posting, future.exception())
        self.answers[expected] = self.answers.get(expected, 0) + 1
        if expected == "posted" and attempt.then is not None:
            attempt.then(future.result())

    def wait(self, minutes: int) -> None:
        """Time passes, and the reaper gives back what has expired."""
        self.ledger.now_ns += minutes * MINUTE_NS
        reaped = 0
        while some := self.ledger.reaper.sweep(ANSWER_S):  # Each sweep ends a limited number.
            reaped += some
        assert reaped == self.model.sweep(self.ledger.now_ns)

    def check(self, *, deep: bool = False) -> None:
        """The ledger contains what the model contains, and breaks no rule."""
        with self.ledger.read() as session:
            found = {each.code: (each.posted_nano, each.held_nano) for each in balances(session, limit=ROWS_MAX)}
        assert {code: amounts for code, amounts in found.items() if any(amounts)} == self.model.accounts()
        assert self.ledger.findings(deep=deep) == []


Wish: TypeAlias = Callable[[World], Attempt | None]
"""Something to try that makes sense at this moment; None where nothing of the kind does."""


def moves(posting: Posting, deltas: Deltas, then: Callable[[Posted], None] | None = None) -> Attempt:
    """An event that only moves money, and what it must do to each balance."""
    content = (posting.kind, {account: amount for account, amount in deltas.items() if amount})
    return Attempt(lambda model: model.move(posting.idem_key, content, deltas), posting, then)


def known(name: str, parts: Shares, posted: Posted, *, owner: str, lane: str, expires_ns: int) -> Known:
    """Reserved parts, with the numbers that the ledger gave them: those of the event's last transfers."""
    seqs = posted.transfer_seqs[len(posted.transfer_seqs) - len(parts) :]
    with_seqs = zip(parts, seqs, strict=True)
    return Known(
        name, tuple(HeldPart(code, amount, seq) for (code, amount), seq in with_seqs), owner, lane, expires_ns
    )


def again(world: World) -> Attempt | None:
    """A retry of something recent, granted or refused."""
    return world.chance.choice(world.attempts) if world.attempts else None


def tampered(world: World) -> Attempt | None:
    """The key of an earlier event with the contents of another: what a buggy or hostile caller might send."""
    if not world.attempts:
        return None
    key, amount = world.chance.choice(world.attempts).posting.idem_key, world.amount()
    forged = replace(grants.manual_credit("forged", "eve", amount, "tampered"), idem_key=key)
    return moves(forged, {"asset:bank": amount, "user:eve:paid": amount})

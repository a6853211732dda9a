"""Two processes and an organization, with random events: funding sources keep their promises after each step."""

import itertools
from collections import Counter
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from accounting.chart import INCOME_BREAKAGE, pool_paid, user_paid, user_promo
from accounting.errors import InsufficientCredit
from accounting.rules.held import Hold, Payer
from accounting.spending.credit_grants import grants_of
from accounting.spending.funding_sources import credits_of
from accounting.spending.lease import LEASE_NS
from accounting.spending.leases import Leases
from runtime.database import open_engine
from tests.accounting.funding_lookup import ANN, BOB, FORMER, end, grant, pool
from tests.accounting.ledgers import ANSWER_S, LedgerService
from tests.accounting.machines import Interrupted, run_machine
from tests.databases import Databases, Kind

PROCESSES = (0, 1)


@dataclass(frozen=True)
class Wish:
    """One thing to try; most are holds and ends, as in life."""

    what: Literal["own", "pool", "grant", "hold", "grow", "end", "meanwhile", "turn", "wait", "die"]
    process: int
    payer: Payer
    amount: int
    pick: int
    percent: int


WISHES = st.builds(
    Wish,
    what=st.sampled_from(
        ("hold",) * 10
        + ("end",) * 8
        + (
            "grow",
            "grow",
            "meanwhile",
            "meanwhile",
            "turn",
            "turn",
            "own",
            "pool",
            "grant",
            "grant",
            "wait",
            "wait",
            "die",
        )
    ),
    process=st.sampled_from(PROCESSES),
    payer=st.sampled_from((ANN, ANN, BOB, FORMER)),
    # Round numbers, so that accounts are spent to the last nano now and then.
    amount=st.sampled_from((100, 200, 400)),
    pick=st.integers(0, 99),
    percent=st.sampled_from((0, 1, 50, 100, 150)),
)


class FundingMachine(RuleBasedStateMachine):
    """Members of one organization in two processes; grants end meanwhile. Each turn of a process is a step."""

    def __init__(self, databases: Databases, kind: Kind) -> None:
        super().__init__()
        self._open = ExitStack()
        self.engine = open_engine(self._open.enter_context(databases.database(kind)))
        self._open.callback(self.engine.dispose)
        self.ledgers = [self._open.enter_context(LedgerService(self.engine)) for _ in PROCESSES]
        self.writers = [Interrupted(ledger.poster) for ledger in self.ledgers]
        self.leases = [self.new_leases(process) for process in PROCESSES]
        self.credit_grants: dict[str, int] = {}
        self.accounts = {pool_paid("lab"), user_paid("ann"), user_paid("bob")}
        self.given = 0
        self.running: list[tuple[int, Hold]] = []
        self.waiting: list[tuple[int, Future[Hold]]] = []
        self.numbers = itertools.count()

    def new_leases(self, process: int) -> Leases:
        self.writers[process].meanwhile.clear()
        read = self.ledgers[process].read
        return Leases(self.writers[process], read, clock_ns=lambda: self.ledgers[0].now_ns)

    def teardown(self) -> None:
        for leases in self.leases:
            leases.turn(is_closing=True)
        self.ledgers[0].now_ns += 3600 * 10**9
        for _ in range(2):
            self.ledgers[0].reaper.sweep(ANSWER_S)
        held_nano = [self.ledgers[0].balance(account).held_nano for account in self.accounts]
        unexpired = [self.ledgers[0].balance(account).posted_nano for account in self.credit_grants]
        found = self.ledgers[0].findings()
        self._open.close()
        assert (any(held_nano), any(unexpired), found) == (False, False, [])

    @initialize()
    def all_have_some(self) -> None:
        self.give("pool", ANN, 700, 0)
        self.give("own", ANN, 300, 0)
        self.give("grant", ANN, 200, 20)

    @rule(wishes=st.lists(WISHES, min_size=4, max_size=16))
    def act(self, wishes: list[Wish]) -> None:
        for wish in wishes:
            match wish.what:
                case "own" | "pool" | "grant":
                    self.give(wish.what, wish.payer, wish.amount, wish.pick)
                case "hold":
                    self.hold(wish.process, wish.payer, wish.amount)
                case "grow":
                    self.grow(wish.pick, wish.amount)
                case "end":
                    self.end(wish.pick, wish.percent)
                case "meanwhile":
                    self.hold_meanwhile(wish.process, wish.payer, wish.amount)
                case "turn":
                    self.turn(wish.process)
                case "wait":
                    self.wait((1, 6, 70)[wish.pick % 3])
                case "die":
                    self.die(wish.process)
            self.check()

    def give(self, what: str, payer: Payer, amount: int, pick: int) -> None:
        ledger, number = self.ledgers[0], next(self.numbers)
        self.given += amount
        if what == "own":
            ledger.credit(payer.user_id, amount)
        elif what == "pool":
            pool(ledger, amount, str(number))
        else:
            grant(ledger, self.engine, f"l{number}", amount, (0.1, 0.5, 1, 3)[pick % 4], payer.user_id)
            account = user_promo(payer.user_id, f"l{number}")
            self.accounts.add(account)
            with ledger.read() as session:
                (granted,) = [
                    each.grant for each in grants_of(session, payer.user_id) if each.grant.id == f"l{number}"
                ]
            self.credit_grants[account] = granted.expires_ns

    def hold(self, process: int, payer: Payer, amount: int) -> None:
        placed = self.leases[process].hold(f"r{next(self.numbers)}", payer, amount)
        if hold := self.answered(process, payer, placed, amount):
            self.running.append((process, hold))

    def hold_meanwhile(self, process: int, payer: Payer, amount: int) -> None:
        """A request comes while the process's leases are rolled; it waits for one more turn at most."""

        def come() -> None:
            placed = self.leases[process].hold(f"r{next(self.numbers)}", payer, amount)
            if isinstance(placed, Hold):
                self.running.append((process, placed))
            else:
                self.waiting.append((process, placed))

        self.writers[process].meanwhile.append(come)
        self.turn(process)

    def grow(self, pick: int, amount: int) -> None:
        if self.running:
            number = pick % len(self.running)
            process, hold = self.running[number]
            placed = self.leases[process].grow(hold, hold.amount_nano + amount)
            if grown := self.answered(process, hold.payer, placed, amount):
                self.running[number] = (process, grown)

    def answered(self, process: int, payer: Payer, placed: "Hold | Future[Hold]", more: int) -> Hold | None:
        if isinstance(placed, Hold):
            return placed
        self.turn(process)
        error = placed.exception(0)
        if error is None:
            return placed.result()
        assert isinstance(error, InsufficientCredit)
        # Refused is only who would be refused by a look at the accounts.
        lease = self.leases[process]._leases.get(payer)
        with self.ledgers[0].read() as session:
            spendable = credits_of(session, payer, self.ledgers[0].now_ns)
        assert sum(share.amount_nano for share in spendable) + (lease.free_nano if lease else 0) < more
        return None

    def end(self, pick: int, percent: int) -> None:
        if self.running:
            process, hold = self.running.pop(pick % len(self.running))
            charge = min(hold.amount_nano * percent // 100, hold.amount_nano)
            end(self.leases[process], hold, charge)

    def turn(self, process: int) -> None:
        assert self.leases[process].turn()
        waiting, self.waiting = self.waiting, []
        if any(each == process for each, _ in waiting):
            assert self.leases[process].turn()
        for each, placed in waiting:
            if not placed.done():
                assert each != process
                self.waiting.append((each, placed))
            elif placed.exception(0) is None:
                self.running.append((each, placed.result()))

    def wait(self, seconds: int) -> None:
        """Each process lives, and looks at its leases before they end."""
        for ledger in self.ledgers:
            ledger.now_ns += seconds * 10**9
        for process in PROCESSES:
            self.turn(process)
        assert self.ledgers[0].reaper.sweep(ANSWER_S) == 0

    def die(self, process: int) -> None:
        """As after kill -9; the other process slept as long, and finds its leases gone."""
        self.leases[process] = self.new_leases(process)
        for ledger in self.ledgers:
            ledger.now_ns += LEASE_NS + 1
        self.running, self.waiting = [], []
        self.ledgers[0].reaper.sweep(ANSWER_S)
        self.turn(1 - process)

    def check(self) -> None:
        ledger, now_ns = self.ledgers[0], self.ledgers[0].now_ns
        kept: Counter[str] = Counter()
        for lease in itertools.chain.from_iterable(each._leases.values() for each in self.leases):
            needed = sum(lease.reserved.values()) + sum(lease.spent.values())
            assert lease.amount_nano >= needed == lease.reserved_nano + lease.spent_nano
            for part in lease.parts:
                kept[part.account] += part.amount_nano
        found = {account: ledger.balance(account) for account in self.accounts}
        assert all(balance.available_nano >= 0 for balance in found.values())
        assert {account: balance.held_nano for account, balance in found.items() if balance.held_nano} == +kept
        gone = ledger.balance("provider:acme:accrued").posted_nano + ledger.balance(INCOME_BREAKAGE).posted_nano
        assert sum(balance.posted_nano for balance in found.values()) + gone == self.given
        for account, ends_ns in self.credit_grants.items():
            # Nothing more is reserved from a grant that has ended.
            if now_ns >= ends_ns and account in kept:
                assert kept[account] <= self.kept_at_end.setdefault(account, kept[account])

    kept_at_end: dict[str, int]

    @initialize()
    def nothing_has_ended(self) -> None:
        self.kept_at_end = {}


def test_funding_sources_keep_their_promises(databases: Databases, kind: Kind) -> None:
    run_machine(FundingMachine, databases, kind, examples=4 if kind == "sqlite" else 2)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_funding_sources_keep_their_promises_for_long(databases: Databases, kind: Kind) -> None:
    run_machine(FundingMachine, databases, kind, examples=300 if kind == "sqlite" else 60)

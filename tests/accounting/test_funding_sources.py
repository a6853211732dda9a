"""Charge order: credit grants, the organization, own credits; no one pays twice or is refused without cause."""

import threading
from collections import Counter
from concurrent.futures import Future

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import IntegrityError

from accounting.chart import INCOME_BREAKAGE, user_paid, user_promo
from accounting.errors import AmountInvalid, IdempotencyConflict, InsufficientCredit, PostingInvalid
from accounting.ledger.balances import Reader
from accounting.rules.held import CloudBill, Hold, Payer
from accounting.rules.parts import Share
from accounting.spending import funding_sources as funding_lookup
from accounting.spending.credit_grants import CreditGrant, CreditGrants, grants_of
from accounting.spending.funding import Funding, FundingSource
from accounting.spending.funding_sources import FundingLookup, credits_of, funding_of
from accounting.spending.lease import LEASE_NS
from accounting.spending.leases import Leases
from accounting.spending.reaper import lease_tip, open_holds
from accounting.tables import credit_grant_table
from runtime.database import write_sessions
from tests.accounting.funding_lookup import (
    ANN,
    BOB,
    FORMER,
    GRANT_A,
    GRANT_B,
    OWN,
    POOL,
    end,
    grant,
    held,
    leases_of,
    left,
    pool,
)
from tests.accounting.ledgers import ANSWER_S, MINUTE_NS, START_NS, LedgerService, usage


def test_grants_that_end_first_pay_first_then_the_pool_then_own_credits(
    ledger: LedgerService, engine: Engine
) -> None:
    leases = leases_of(ledger)
    ledger.credit("ann", 100)
    pool(ledger, 100)
    grant(ledger, engine, "b", 100, minutes=60)
    grant(ledger, engine, "a", 100, minutes=60)
    grant(ledger, engine, "0-later", 100, minutes=61)
    grant(ledger, engine, "0-other", 100, minutes=1, user_id="bob")
    with ledger.read() as session:
        found = credits_of(session, ANN, ledger.now_ns)
        later = user_promo("ann", "0-later")
        assert found == [Share(account, 100) for account in (GRANT_A, GRANT_B, later, POOL, OWN)]
        assert funding_of(session, FORMER, ledger.now_ns)[-2:] == (
            FundingSource(later, START_NS + 61 * MINUTE_NS),
            FundingSource(OWN),
        )
    all_of_them = (GRANT_A, GRANT_B, later, POOL, OWN)
    for number, expected in enumerate(
        ([30, 100, 100, 100, 100], [0, 60, 100, 100, 100], [0, 0, 0, 90, 100], [0, 0, 0, 0, 0]), start=1
    ):
        charge = (70, 70, 170, 190)[number - 1]
        end(leases, held(leases, leases.hold(f"r{number}", ANN, charge)), charge)
        leases.turn()
        assert left(ledger, *all_of_them) == expected
    pending = leases.hold("r9", ANN, 1)
    leases.turn()
    assert isinstance(pending, Future)
    with pytest.raises(InsufficientCredit) as refused:
        pending.result(ANSWER_S)
    assert (refused.value.account, refused.value.available_nano) == (OWN, 0)
    leases.turn(is_closing=True)
    assert ledger.findings() == []


def test_a_grant_pays_for_what_ran_when_it_ended_and_nothing_after(ledger: LedgerService, engine: Engine) -> None:
    leases = leases_of(ledger)
    ledger.credit("ann", 1000)
    grant(ledger, engine, "a", 500, minutes=0.5)
    running = held(leases, leases.hold("r1", ANN, 100))
    before = held(leases, leases.hold("r2", ANN, 50))
    ledger.now_ns += 30 * 10**9
    after = held(leases, leases.hold("r3", ANN, 100))
    assert ledger.balance(GRANT_A).held_nano == 150
    assert ledger.reaper.sweep(ANSWER_S) == 0
    assert ledger.balance(GRANT_A).available_nano == 0
    end(leases, after, 100)
    end(leases, before, 0)
    end(leases, running, 20)
    leases.turn(is_closing=True)
    # The first capture was paid by the grant: as much as was promised of it, and no more.
    assert left(ledger, GRANT_A, OWN) == [30, 1000]
    for _ in range(2):
        ledger.reaper.sweep(ANSWER_S)
        assert left(ledger, GRANT_A, OWN, INCOME_BREAKAGE) == [0, 1000, 350 + 30]
    assert ledger.findings() == []


def test_a_former_member_draws_on_own_credits_and_earlier_requests_on_the_pool(ledger: LedgerService) -> None:
    leases = leases_of(ledger)
    ledger.credit("ann", 100)
    pool(ledger, 1000)
    running = held(leases, leases.hold("r1", ANN, 300))
    refused = leases.hold("r2", FORMER, 101)
    leases.turn()
    assert isinstance(refused, Future)
    assert isinstance(refused.exception(ANSWER_S), InsufficientCredit)
    end(leases, held(leases, leases.hold("r3", FORMER, 100)), 100)
    end(leases, running, 300)
    leases.turn(is_closing=True)
    assert left(ledger, POOL, OWN) == [700, 0]
    assert ledger.findings() == []


def test_what_others_of_this_process_have_unused_is_there_for_who_needs_it(ledger: LedgerService) -> None:
    leases = leases_of(ledger)
    pool(ledger, 1000)
    for number in range(3):
        end(leases, held(leases, leases.hold(f"r{number}", ANN, 100)), 10)
    assert leases._leases[ANN].free_nano > 0
    needed = 1000 - 3 * 10
    assert held(leases, leases.hold("r9", BOB, needed)).amount_nano == needed


def test_a_grant_is_given_once_and_never_changes(ledger: LedgerService, engine: Engine) -> None:
    credit_grants = CreditGrants(write_sessions(engine), clock_ns=lambda: ledger.now_ns)
    granted = CreditGrant("a", "ann", 100, ledger.now_ns + MINUTE_NS, reason="welcome")
    assert [ledger.post(credit_grants.write_down(granted)).replayed for _ in range(2)] == [False, True]
    for other in (
        CreditGrant("a", "bob", 100, granted.expires_ns),
        CreditGrant("a", "ann", 100, granted.expires_ns + 1),
    ):
        with pytest.raises(IdempotencyConflict):
            credit_grants.write_down(other)
    for expires_ns in (ledger.now_ns, ledger.now_ns + 10**19):
        with pytest.raises(PostingInvalid):
            credit_grants.write_down(CreditGrant("b", "ann", 100, expires_ns))
    with pytest.raises(AmountInvalid):
        credit_grants.write_down(CreditGrant("b", "ann", 0, granted.expires_ns))
    with ledger.read() as session:
        assert [(each.grant, each.posted_nano) for each in grants_of(session, "ann")] == [(granted, 100)]
    for change in (
        credit_grant_table.update().values(expires_ns=granted.expires_ns + 1),
        credit_grant_table.delete(),
    ):
        with pytest.raises(IntegrityError), write_sessions(engine)() as session, session.begin():
            session.execute(change)


def test_a_market_grant_pays_for_no_cloud_request(ledger: LedgerService, engine: Engine) -> None:
    credit_grants = CreditGrants(write_sessions(engine), clock_ns=lambda: ledger.now_ns)
    with pytest.raises(PostingInvalid, match="its scope must be 'cloud'"):
        credit_grants.write_down(CreditGrant("a", "ann", 100, ledger.now_ns + MINUTE_NS, "market"))
    with ledger.read() as session:
        assert funding_of(session, ANN, ledger.now_ns) == (FundingSource(OWN),)


def test_parts_of_a_process_that_died_come_back_together(ledger: LedgerService, engine: Engine) -> None:
    leases = leases_of(ledger)
    ledger.credit("ann", 100)
    pool(ledger, 100)
    grant(ledger, engine, "a", 100, minutes=60)
    first = held(leases, leases.hold("r1", ANN, 50))
    held(leases, leases.hold("r2", ANN, 200))
    with ledger.read() as session:
        (found,) = open_holds(session)
        assert lease_tip(session, first.pending_seq) == found.parts
        assert [part.account for part in found.parts] == [GRANT_A, POOL, OWN]
    ledger.now_ns += LEASE_NS + 1
    assert ledger.reaper.sweep(ANSWER_S) == 1
    assert ledger.reaper.sweep(ANSWER_S) == 0
    assert left(ledger, GRANT_A, POOL, OWN) == [100, 100, 100]
    with ledger.read() as session:
        assert open_holds(session) == []
    assert ledger.findings() == []


def test_many_members_drain_a_pool_and_none_overdraws_it(ledger: LedgerService) -> None:
    """Half of them in another process, each with a few credits of its own."""
    pool(ledger, 60 * 50)
    members = [Payer(f"m{number}", "lab") for number in range(10)]
    for member in members:
        ledger.credit(member.user_id, 100)
    processes = [Leases(ledger.poster, ledger.read) for _ in range(2)]
    for each in processes:
        each.start()
    start = threading.Barrier(len(members))
    served: Counter[str] = Counter()

    def ask(number: int) -> None:
        mine, member = processes[number % 2], members[number]
        start.wait(ANSWER_S)
        for turn in range(12):
            try:
                placed = mine.hold(f"r{number}-{turn}", member, 50)
                hold = placed if isinstance(placed, Hold) else placed.result(ANSWER_S)
            except InsufficientCredit:
                continue
            mine.end(hold, 50)
            bill, record = CloudBill("acme", 50, 40), usage(hold.request_id, lane="cloud")
            mine.capture(hold, bill, record).result(ANSWER_S)
            served[member.user_id] += 1

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(members))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(4 * ANSWER_S)
    for each in processes:
        each.stop()
    paid_by_pool = 60 * 50 - ledger.balance(POOL).available_nano
    own_left = sum(ledger.balance(user_paid(member.user_id)).available_nano for member in members)
    assert 50 * sum(served.values()) == paid_by_pool + 10 * 100 - own_left
    assert sum(served.values()) <= 80
    assert all(served[member.user_id] >= 2 for member in members), "each had credits of its own"
    assert ledger.findings() == []


def test_credits_that_were_given_buy_nothing_on_the_market(ledger: LedgerService, engine: Engine) -> None:
    leases = leases_of(ledger)
    ledger.credit("ann", 100)
    pool(ledger, 50)
    grant(ledger, engine, "a", 1000, minutes=60)
    buying = ANN._replace(takes_grants=False)
    with ledger.read() as session:
        assert credits_of(session, buying, ledger.now_ns) == [Share(POOL, 50), Share(OWN, 100)]
    at_provider = held(leases, leases.hold("r1", ANN, 80))
    at_seller = held(leases, leases.hold("r2", buying, 120))
    assert (at_provider.lease != at_seller.lease, at_seller.payer) == (True, buying)
    with pytest.raises(InsufficientCredit):
        held(leases, leases.hold("r3", buying, 31))
    end(leases, at_provider, 80)
    end(leases, at_seller, 120)
    leases.turn()
    assert left(ledger, GRANT_A, POOL, OWN) == [920, 0, 30]


def test_a_grant_during_a_read_of_funding_sources_pays_next(
    ledger: LedgerService, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookup = FundingLookup(ledger.read, clock_ns=lambda: ledger.now_ns)

    def slowly(reader: Reader, payer: Payer, now_ns: int) -> Funding:
        monkeypatch.setattr(funding_lookup, "funding_of", funding_of)
        found = funding_of(reader, payer, now_ns)
        grant(ledger, engine, "a", 100, minutes=60)
        lookup.forget_all()
        return found

    monkeypatch.setattr(funding_lookup, "funding_of", slowly)
    assert [source.account for source in lookup.of(ANN)] == [OWN]
    assert [source.account for source in lookup.of(ANN)] == [GRANT_A, OWN]

"""Refunds of requests that one event ended: in any order, no account gets back more than it paid."""

import pytest
from sqlalchemy import Engine

from accounting.ledger.postings import Posting
from accounting.rules import burst, usage_refunds
from accounting.rules.held import CloudBill
from accounting.rules.parts import HeldPart, Share
from accounting.spending.charges import find_charge, find_refund_parties
from accounting.spending.credit_grants import CreditGrant, CreditGrants
from runtime.database import write_sessions
from tests.accounting.ledgers import MINUTE_NS, LedgerService, usage

GRANT, OWN = "user:ann:promo:l1", "user:ann:paid"


@pytest.fixture
def spent(ledger: LedgerService, engine: Engine) -> LedgerService:
    """A grant of 10 and 10 own credits paid two requests of 10 each, which one event ended."""
    granted = CreditGrant("l1", "ann", 10, ledger.now_ns + 10 * MINUTE_NS)
    ledger.post(CreditGrants(write_sessions(engine), clock_ns=lambda: ledger.now_ns).write_down(granted))
    ledger.credit("ann", 10)
    shares = (Share(GRANT, 10), Share(OWN, 10))
    placed = ledger.post(burst.lease("first", (), (), shares, expires_ns=ledger.now_ns + MINUTE_NS))
    parts = [HeldPart(each.account, 10, seq) for each, seq in zip(shares, placed.transfer_seqs, strict=True)]
    bill = CloudBill("acme", 10, 6)
    ended = [(bill, usage(request, lane="cloud", charge_nano=10, cost_nano=6)) for request in ("r1", "r2")]
    ledger.post(burst.lease("second", parts, ended, expires_ns=0))
    assert [ledger.balance(account).posted_nano for account in (GRANT, OWN)] == [0, 0]
    return ledger


def refund(ledger: LedgerService, request_id: str) -> Posting:
    with ledger.read() as session:
        charge = find_charge(session, request_id)
        assert charge is not None
        standing = find_refund_parties(session, charge, ledger.now_ns)
    return usage_refunds.refund(charge, charge.charge_nano, "test", standing)


@pytest.mark.parametrize("order", ["r1 r2", "r2 r1"])
def test_two_refunds_at_once_give_each_account_back_what_it_paid(spent: LedgerService, order: str) -> None:
    first, second = (refund(spent, request) for request in order.split())
    spent.post(first)
    spent.post(second)
    assert [spent.balance(account).posted_nano for account in (GRANT, OWN)] == [10, 10]
    assert spent.findings() == []


def test_a_refund_to_an_ended_grant_becomes_own_credits(spent: LedgerService) -> None:
    spent.now_ns += 9 * MINUTE_NS + 1  # What ends within the minute may be gone before it is booked.
    for request in ("r1", "r2"):
        spent.post(refund(spent, request))
    assert [spent.balance(account).posted_nano for account in (GRANT, OWN)] == [0, 20]
    assert spent.findings() == []

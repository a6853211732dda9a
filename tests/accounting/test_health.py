"""The check finds every broken ledger rule: broken by an event that no rule makes, or by a forger."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, text

from accounting.ledger.health import RULES, findings
from accounting.ledger.postings import Leg, Posting
from accounting.rules import allocations, burst, grants, market
from accounting.rules.corrections import correction
from accounting.rules.held import CloudBill
from accounting.rules.parts import HeldPart, Share
from accounting.rules.variances import owed_beyond
from accounting.spending.credit_grants import CreditGrant, CreditGrants
from runtime.database import open_engine, write_sessions
from tests.accounting.ledgers import ANSWER_S, MINUTE_NS, LedgerService, usage
from tests.databases import KINDS, Databases, Kind

ANN, GRANT, SAM, EXPIRES_NS = "user:ann:paid", "user:ann:promo:l1", "seller:sam:maturing", 2**60
BURST, MARKET, MARGIN = "clearing:burst", "clearing:market", "income:burst_margin"

TAKEN: dict[str, tuple[Posting, ...]] = {
    "clearing_passes_on clearing_empty": (Posting("x", "correction", "x", (Leg(ANN, BURST, 5),)),),
    "captures_within_holds": (Posting("cap:r9", "purchase", "r9", (Leg(ANN, MARKET, 5), Leg(MARKET, SAM, 5))),),
    "usage_is_charged": (Posting("use:r9", "use", "r9", usages=(usage("r9", charge_nano=5),)),),
    "variances_after_charges": (
        owed_beyond("r9", "acme", 0, 7),
        Posting("use:r9", "use", "r9", usages=(usage("r9", cost_nano=5),)),
    ),
    "refunds_to_payers": (
        Posting("refund:r1", "usage_refund", "r1", (Leg(MARGIN, BURST, 1), Leg(BURST, "user:bob:paid", 1))),
    ),
    "refunds_within_charges refunds_to_payers": (
        Posting("refund:r1", "usage_refund", "r1", (Leg(MARGIN, BURST, 41), Leg(BURST, ANN, 41))),
    ),
    "draws_within_allocations": (
        Posting("settle:a1:2", "late", "a1", (Leg(ANN, MARKET, 21), Leg(MARKET, SAM, 21))),
    ),
    "credit_grants": (Posting("x", "credit", "x", (Leg(ANN, GRANT, 5),)),),
    "promo_not_sold": (Posting("x", "correction", "x", (Leg(GRANT, MARKET, 5), Leg(MARKET, SAM, 5))),),
}
"""Events that no rule makes and that the ledger would accept, with the rules that they break."""


@dataclass(frozen=True, slots=True)
class Sound:
    """A closed database with a sound ledger, and the time in it."""

    kind: Kind
    dsn: str
    now_ns: int


@pytest.fixture(scope="module", params=KINDS)
def sound(request: pytest.FixtureRequest, databases: Databases) -> Iterator[Sound]:
    """Write it once: to write takes longer than most tests of this file."""
    kind: Kind = request.param
    with databases.database(kind) as dsn:
        engine = open_engine(dsn)
        with LedgerService(engine) as ledger:
            write_some(ledger)
        engine.dispose()
        yield Sound(kind, dsn, ledger.now_ns)


def write_some(ledger: LedgerService) -> None:
    """One of each: r1 charged 40, r2 reaped, r3 bought for 30, 10 of 30 drawn on a1."""
    ledger.credit("ann", 1000)
    ledger.post(grants.promo("l1", "ann", 100, "test"))
    held = ledger.hold("r1", "ann", 50)
    ledger.post(burst.capture(held, CloudBill("acme", 40, 25), usage("r1", lane="cloud")))
    ledger.post(owed_beyond("r1", "acme", 25, 30))
    shares = (Share(ANN, 30),)
    placed = ledger.post(market.hold("r3", shares, ledger.now_ns))
    order = market.PurchaseHold("r3", (HeldPart(ANN, 30, placed.transfer_seqs[0]),))
    ledger.post(market.capture(order, market.SellerBill("sam", 30, 1000), usage("r3", lane="market")))
    aside = ledger.post(market.hold("a1", (Share(ANN, 30),), ledger.now_ns))
    allocated = allocations.Allocated("a1", "ann", "sam", 30, 1000, ledger.now_ns)
    drawn = allocations.draw(allocated, allocations.Drawn(parts=(HeldPart(ANN, 30, aside.transfer_seqs[0]),)), 10)
    assert drawn
    ledger.post(drawn)
    late = ledger.hold("r2", "ann", 10)
    ledger.now_ns += 3 * MINUTE_NS
    assert ledger.reaper.sweep(ANSWER_S) == 2
    ledger.post(burst.late_capture(late, CloudBill("acme", 10, 10), usage("r2", lane="cloud"), covered_nano=10))
    ledger.post(Posting("empty", "correction", "empty"))
    ledger.post(grants.pool_credit("c9", "lab", 1, "test"))
    assert ledger.findings() == []


@pytest.fixture
def dsn(sound: Sound, databases: Databases) -> Iterator[str]:
    with databases.copied(sound.kind, sound.dsn) as dsn:
        yield dsn


@pytest.fixture
def written(sound: Sound, ledger: LedgerService) -> LedgerService:
    """A copy of the sound ledger, for the test to break."""
    ledger.now_ns = sound.now_ns
    return ledger


@pytest.mark.parametrize("rules", TAKEN)
def test_what_no_rule_would_book_is_seen(written: LedgerService, rules: str) -> None:
    with written.read() as session:
        before = findings(session, written.now_ns)
    for posting in TAKEN[rules]:
        seq = written.post(posting).event_seq
    assert (before, {finding.rule for finding in written.findings()}) == ([], set(rules.split()))
    with written.read() as session:
        later = {finding.rule for finding in findings(session, written.now_ns, since_seq=seq)}
    assert later == {"clearing_empty"} & set(rules.split()), "what was seen before is not looked at again"


FORGED: dict[str, str] = {
    "debits_equal_credits equation credits_are_sums": "UPDATE account SET credits_posted = credits_posted + 5"
    f" WHERE code = '{ANN}'",
    "accounts_charted": f"UPDATE account SET kind = 'expense', normal = 'D' WHERE code = '{MARGIN}'",
    "debits_equal_credits no_overdraft debits_are_sums": "UPDATE account SET debits_pending = 2000"
    f" WHERE code = '{ANN}'",
    "events_numbered": "DELETE FROM event WHERE idem_key = 'empty'",
    "transfers_numbered debits_are_sums credits_are_sums": "DELETE FROM transfer WHERE seq = 2",
    "late_after_reaper": "UPDATE event SET idem_key = 'x' WHERE idem_key = 'reap:r2'",
    "holds_resolved_once": "UPDATE transfer SET amount = 51 WHERE phase = 'post' AND amount = 40",
}
"""What a hand does that has the right to take the triggers off, with the rules that show it."""


def _disarm(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        connection.execute(text("PRAGMA ignore_check_constraints = ON"))
        names = connection.scalars(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).all()
        for name in names:
            connection.execute(text(f"DROP TRIGGER {name}"))
        return
    for table in ("account", "event", "transfer"):
        connection.execute(text(f"ALTER TABLE {table} DISABLE TRIGGER USER"))
    connection.execute(text("ALTER TABLE account DROP CONSTRAINT no_overdraft"))


@pytest.mark.parametrize("rules", FORGED)
def test_what_a_hand_has_changed_is_seen(written: LedgerService, engine: Engine, rules: str) -> None:
    with engine.begin() as connection:
        _disarm(connection)
        connection.execute(text(FORGED[rules]))
    assert set(rules.split()) <= {finding.rule for finding in written.findings()}


def test_what_users_put_right_is_no_breach(written: LedgerService) -> None:
    written.post(correction("given-twice", GRANT, "expense:promo", 100))
    assert written.findings() == []


def test_an_expired_hold_is_found_and_is_no_reason_to_stop(written: LedgerService, engine: Engine) -> None:
    granted = CreditGrant("l2", "ann", 100, written.now_ns + MINUTE_NS)
    written.post(CreditGrants(write_sessions(engine), clock_ns=lambda: written.now_ns).write_down(granted))
    written.hold("r4", "ann", 10)
    written.now_ns += 4 * MINUTE_NS
    found = written.findings()
    assert [(finding.rule, finding.is_essential) for finding in found] == [
        ("holds_resolved", False),
        ("grants_expired", False),
    ]


def test_no_rule_is_left_untested_or_unexplained() -> None:
    explained = Path(__file__).parents[2].joinpath("docs", "ledger.md").read_text(encoding="utf-8")
    assert [name for name in RULES if f"`{name}`" not in explained] == []
    tested = {name for rules in (*TAKEN, *FORGED) for name in rules.split()}
    # Those of a gateway that makes blocks: tests/gateway/api/test_rewritten_ledger.py.
    elsewhere = {"holds_resolved", "grants_expired", "blocks_kept", "events_as_asked"}
    assert tested | elsewhere == RULES.keys()
    assert len({rule.meaning for rule in RULES.values()}) == len(RULES)

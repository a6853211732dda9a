"""Reports of the ledger: balances, statements by page, usage totals."""

from accounting.ledger.balances import balances, statement
from accounting.metering.usage import UsageTotal, usage_totals
from accounting.rules import local
from accounting.rules.held import CloudBill
from tests.accounting.ledgers import ANSWER_S, START_NS, LedgerService, usage

DAY_NS = 86_400 * 10**9


def test_a_statement_reads_from_the_account_and_pages_backwards(ledger: LedgerService) -> None:
    ledger.credit("ann", 1000)
    held = ledger.hold("r1", "ann", 500)
    ledger.holds.capture(held, CloudBill("acme", charge_nano=300, cost_nano=200)).result(ANSWER_S)
    with ledger.read() as session:
        lines = statement(session, "user:ann:paid", limit=2)
        older = statement(session, "user:ann:paid", before_seq=lines[-1].transfer_seq)
        bank = statement(session, "asset:bank")
        codes = [each.code for each in balances(session, "user:")]
    assert [(line.kind, line.phase, line.counterpart, line.amount_nano) for line in lines + older] == [
        ("capture", "post", "clearing:burst", -300),
        ("hold", "pending", "clearing:burst", -500),
        ("credit", "single", "asset:bank", 1000),
    ]
    assert [line.amount_nano for line in bank] == [1000]
    assert codes == ["user:ann:paid"]


def test_usage_is_totalled_by_any_groups(ledger: LedgerService) -> None:
    for number, (model, user_id, day) in enumerate(
        [("a", "ann", 0), ("a", "bob", 0), ("b", "ann", 1), ("b", "ann", 2)]
    ):
        record = usage(
            f"r{number}", model=model, user_id=user_id, started_ns=START_NS + day * DAY_NS, compute_nano=10
        )
        ledger.post(local.local_use(record))
    with ledger.read() as session:
        until_ns = START_NS + 2 * DAY_NS
        by_model = usage_totals(session, ["model"], since_ns=0, until_ns=until_ns)
        anns = usage_totals(session, ["day", "lane"], since_ns=0, until_ns=until_ns, user_id="ann")
    assert by_model == [
        UsageTotal(("a",), 2, 240, 40, 80, 0, 0, 20),
        UsageTotal(("b",), 1, 120, 20, 40, 0, 0, 10),
    ]
    assert [(total.group, total.requests) for total in anns] == [
        (("2026-09-21", "cluster"), 1),
        (("2026-09-22", "cluster"), 1),
    ]

"""Callers without credits are refused by a few shared reads: callers who can pay do not wait for them."""

from concurrent.futures import Future

from sqlalchemy import Engine
from sqlalchemy.event import listen

from accounting.rules.held import Payer
from tests.accounting.funding_lookup import held, leases_of, pool
from tests.accounting.ledgers import LedgerService, outcome


def test_many_who_have_nothing_are_refused_by_a_few_readings(ledger: LedgerService, engine: Engine) -> None:
    """Recently refused callers are checked first, all together, and the ledger gets no event."""
    leases = leases_of(ledger)
    payers = [Payer(f"user{number}", "lab") for number in range(40)]
    ledger.credit("user7", 100)
    first = [leases.hold(f"a{number}", payer, 500) for number, payer in enumerate(payers)]
    leases.turn()
    statements: list[str] = []
    listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    again = [leases.hold(f"b{number}", payer, 100) for number, payer in enumerate(payers)]
    leases.turn()
    assert [outcome(placed) for placed in first if isinstance(placed, Future)] == ["InsufficientCredit"] * 40
    outcomes = [outcome(placed) for placed in again if isinstance(placed, Future)]
    assert outcomes == ["posted" if number == 7 else "InsufficientCredit" for number in range(40)]
    assert len(statements) < 40, "many are read for together"
    pool(ledger, 100)
    later = leases.hold("c0", payers[0], 100)
    assert held(leases, later).amount_nano == 100

"""Payers of one pool, and what tests about their credits do all the time."""

from concurrent.futures import Future

from sqlalchemy import Engine

from accounting.chart import pool_paid, user_paid, user_promo
from accounting.rules import grants
from accounting.rules.held import CloudBill, Hold, Payer
from accounting.spending.credit_grants import CreditGrant, CreditGrants
from accounting.spending.leases import Leases
from runtime.database import write_sessions
from tests.accounting.ledgers import ANSWER_S, MINUTE_NS, LedgerService, usage

ANN, BOB = Payer("ann", "lab"), Payer("bob", "lab")
FORMER = Payer("ann")
GRANT_A, GRANT_B, POOL, OWN = user_promo("ann", "a"), user_promo("ann", "b"), pool_paid("lab"), user_paid("ann")


def leases_of(ledger: LedgerService) -> Leases:
    """Each `turn` of them is the test's."""
    return Leases(ledger.poster, ledger.read, clock_ns=lambda: ledger.now_ns)


def pool(ledger: LedgerService, amount: int, name: str = "c") -> None:
    ledger.post(grants.pool_credit(f"pool-{name}", "lab", amount, "test"))


def grant(
    ledger: LedgerService, engine: Engine, grant_id: str, amount: int, minutes: float, user_id: str = "ann"
) -> None:
    credit_grants = CreditGrants(write_sessions(engine), clock_ns=lambda: ledger.now_ns)
    granted = CreditGrant(grant_id, user_id, amount, ledger.now_ns + int(minutes * MINUTE_NS))
    ledger.post(credit_grants.write_down(granted))


def held(leases: Leases, placed: "Hold | Future[Hold]") -> Hold:
    if isinstance(placed, Hold):
        return placed
    leases.turn()
    return placed.result(ANSWER_S)


def end(leases: Leases, hold: Hold, charge: int) -> None:
    bill = CloudBill("acme", charge, charge) if charge else None
    leases.end(hold, charge)
    leases.capture(hold, bill, usage(hold.request_id, lane="cloud", user_id=hold.user_id))


def left(ledger: LedgerService, *accounts: str) -> list[int]:
    return [ledger.balance(account).posted_nano for account in accounts]

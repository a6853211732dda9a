"""A ledger with a few events of every shape, and blocks over them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from accounting.proofs.maker import BlockMaker
from accounting.proofs.signing_key import KeyFile
from accounting.proofs.verdict import Verdict
from accounting.proofs.verification import verify
from accounting.rules import burst, local
from accounting.rules.held import CloudBill
from runtime.database import Commits, read_sessions, write_sessions
from tests.accounting.ledgers import START_NS, LedgerService, usage

BILL = CloudBill("acme", charge_nano=600, cost_nano=400)


def maker(engine: Engine, key: Path, **arguments: object) -> BlockMaker:
    given: dict[str, Any] = {"commit": Commits(engine).latest} | arguments
    return BlockMaker(read_sessions(engine), write_sessions(engine), KeyFile(key), **given)


def checked(engine: Engine) -> Verdict:
    """As of the time of the ledger's clock."""
    return verify(read_sessions(engine), clock_ns=lambda: START_NS)


def book_some(
    ledger: LedgerService, name: str, rounds: int = 1, then: Callable[[], object] = lambda: None
) -> None:
    """Credits, a hold that is captured, one that stays open, one that is let go, and local work: each round six
    events, with `then` after every two."""
    for number in range(rounds):
        request = f"{name}-{number}-é"
        ledger.credit("ann", 5_000)
        held = ledger.hold(f"{request}-a", "ann", 1_000)
        then()
        ledger.post(burst.capture(held, BILL))
        ledger.post(local.local_use(usage(f"{request}-b", compute_nano=7, served_model='ti"ny\\')))
        then()
        ledger.hold(f"{request}-c", "ann", 700)
        ledger.post(burst.release(ledger.hold(f"{request}-d", "ann", 300)))
        then()

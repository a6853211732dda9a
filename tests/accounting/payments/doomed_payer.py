"""A process that deals with Stripe until it is killed at a named place."""

import os
import signal
from collections.abc import Sequence
from itertools import count

from accounting.errors import LedgerError
from accounting.ledger.journal import Failpoint
from accounting.payments.calls import CallFailpoint
from accounting.payments.inbox import Source
from accounting.payments.payments import Payments
from runtime.database import open_engine
from tests.accounting.ledgers import LedgerService
from tests.accounting.payments.marketplace import USD, open_marketplace


def die_dealing(
    dsn: str,
    url: str,
    now_ns: int,
    place: "CallFailpoint | Failpoint",
    passes: int,
    mail: Sequence[tuple[Source, bytes, str]],
) -> None:
    """Deal until the place was passed so often, then die by SIGKILL."""
    passed = count(1)

    def reach(at: "CallFailpoint | Failpoint") -> None:
        if at == place and next(passed) == passes:
            os.kill(os.getpid(), signal.SIGKILL)

    engine = open_engine(dsn)
    with LedgerService(engine, failpoint=reach) as ledger:
        ledger.now_ns = now_ns
        deal(open_marketplace(ledger, engine, url, reach), mail)
    engine.dispose()


def deal(payments: Payments, mail: Sequence[tuple[Source, bytes, str]]) -> None:
    """Everything that moves money, once each; done again it must come to the same."""
    for source, body, signature in mail:
        payments.inbox.receive(source, body, signature)
    payments.worker.run()
    for ask in (
        lambda: payments.refunds.open("r1", "t1", 10 * USD),
        lambda: payments.payouts.open("p1", "sam", 20 * USD),
        lambda: payments.topups.open_auto("bob", "a1"),
        lambda: payments.topups.open("t3", "ann", 5 * USD),
    ):
        try:
            ask()
        except LedgerError:
            continue

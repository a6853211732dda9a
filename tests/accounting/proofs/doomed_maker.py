"""A process that books events and makes blocks of them until it is killed in the middle of a block."""

import os
import signal
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path

from accounting.proofs.maker import Failpoint
from accounting.rules import grants
from runtime.database import open_engine
from tests.accounting.ledgers import LedgerService
from tests.accounting.proofs.proven import maker


def make(dsn: str, key: Path, name: str, failpoint: Failpoint, passes: int, answers: Connection) -> None:
    """Send the number of every event that was booked; die by SIGKILL when the failpoint was passed so often."""
    passed = count(1)

    def reach(place: Failpoint) -> None:
        if place == failpoint and next(passed) == passes:
            os.kill(os.getpid(), signal.SIGKILL)

    engine = open_engine(dsn)
    ledger = LedgerService(engine)
    ledger.poster.start()
    making = maker(engine, key, every_s=0.001, failpoint=reach)
    making.start()
    for number in count():
        posted = ledger.post(grants.manual_credit(f"{name}-{number}", "ann", 1, "kill test"))
        answers.send(posted.event_seq)

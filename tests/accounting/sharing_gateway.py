"""A gateway that shares a ledger, as its own process: it credits without end and reports every answer."""

import os
import signal
import threading
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection

from accounting.errors import LedgerUnavailable
from accounting.ledger.journal import Failpoint
from accounting.ledger.poster import Poster
from accounting.ledger.postings import Posting
from accounting.replication.shared import SharedLedger
from accounting.rules import grants
from runtime.database import open_engine, write_sessions
from tests.accounting.ledgers import ANSWER_S

WRITERS = 3
CREDIT_NANO = 7
LEASE_S = 3.0


def credit(name: str) -> Posting:
    return grants.manual_credit(name, "ann", CREDIT_NANO, "shared ledger")


def share(dsn: str, name: str, answers: Connection) -> None:
    """Write until the other end of `answers` says "end", then hand over and end.

    Sends its name first, then (idempotency key, event number) of every answer. At the word
    "freeze" the process stops itself (SIGSTOP) inside of the next transaction, right before it commits.
    """
    freezing = threading.Event()

    def reach(place: Failpoint) -> None:
        if place == "before_commit" and freezing.is_set():
            freezing.clear()
            os.kill(os.getpid(), signal.SIGSTOP)

    write = write_sessions(open_engine(dsn))
    shared = SharedLedger(write, lease_s=LEASE_S, failpoint=reach)
    poster = Poster(write, booking=shared)
    shared.start(poster.submit)
    poster.start()
    answers.send((shared.name, 0))
    ending, sending = threading.Event(), threading.Lock()

    def work(writer: int) -> None:
        for number in count():
            posting = credit(f"{name}-{writer}-{number}")
            event_seq = None
            while event_seq is None and not ending.is_set():
                with suppress(LedgerUnavailable):
                    event_seq = poster.submit(posting).result(ANSWER_S).event_seq
            if event_seq is None:
                return
            with sending:
                answers.send((posting.idem_key, event_seq))

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(WRITERS)]
    for thread in threads:
        thread.start()
    while answers.recv() == "freeze":
        freezing.set()
    ending.set()
    for thread in threads:
        thread.join()
    assert poster.stop(ANSWER_S)
    shared.stop()
    answers.close()

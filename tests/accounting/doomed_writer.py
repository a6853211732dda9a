"""A process that writes events until it is killed, and tells each answer at once: what it told must stay true."""

import os
import signal
import threading
from itertools import count
from multiprocessing.connection import Connection

from accounting.ledger.journal import Failpoint
from accounting.ledger.postings import Posted, Posting
from accounting.rules import burst, grants, local
from accounting.rules.held import CloudBill, Hold
from gateway.database import open_engine
from tests.accounting.books import MINUTE_NS, START_NS, Books, usage

WRITERS = 4
CREDIT_NANO = 1_000
BILL = CloudBill("acme", charge_nano=600, cost_nano=400)
COMPUTE_NANO = 7


def credit(request_id: str) -> Posting:
    return grants.manual_credit(request_id, "ann", CREDIT_NANO, "kill test")


def write(dsn: str, name: str, failpoint: Failpoint | None, passes: int, answers: Connection) -> None:
    """Book requests from several threads until the failpoint was passed so often, then die by SIGKILL.

    Sends (idempotency key, event number) for every answer. Without a failpoint it goes on until its parent
    kills it.
    """
    passed = count(1)
    sending = threading.Lock()

    def reach(place: Failpoint) -> None:
        if place == failpoint and next(passed) == passes:
            os.kill(os.getpid(), signal.SIGKILL)

    books = Books(open_engine(dsn), failpoint=reach)
    books.poster.start()

    def book(posting: Posting) -> Posted:
        posted = books.post(posting)
        with sending:
            answers.send((posting.idem_key, posted.event_seq))
        return posted

    def serve_requests(writer: int) -> None:
        for number in count():
            request_id = f"{name}-{writer}-{number}"
            book(credit(request_id))
            expires_ns = START_NS + MINUTE_NS
            placed = book(burst.hold(request_id, "ann", CREDIT_NANO, expires_ns))
            held = Hold(request_id, "ann", CREDIT_NANO, placed.transfer_seqs[0], expires_ns)
            book(burst.capture(held, BILL) if number % 2 else burst.release(held))
            book(local.local_use(usage(request_id, compute_nano=COMPUTE_NANO)))

    writers = [threading.Thread(target=serve_requests, args=(writer,)) for writer in range(WRITERS)]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()

"""A process that writes events until it is killed, and tells each answer at once: what it told must stay true."""

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from multiprocessing.connection import Connection

from accounting import chart
from accounting.ledger.journal import Failpoint
from accounting.ledger.postings import Posted, Posting
from accounting.rules import burst, earnings, grants, local, market, usage_refunds
from accounting.rules.held import CloudBill, Hold, Payer
from accounting.rules.parts import HeldPart, Share
from accounting.spending.charges import find_charge, find_refund_parties
from accounting.spending.leases import Leases
from runtime.database import open_engine
from tests.accounting.ledgers import ANSWER_S, MINUTE_NS, START_NS, LedgerService, usage

WRITERS = 4
CREDIT_NANO = 1_000
CHARGE_NANO = 600
REFUND_NANO = 150
COMPUTE_NANO = 7
BILL = CloudBill("acme", CHARGE_NANO, cost_nano=400)
PAYER = Payer("lea", "lab")
EXPIRES_NS = START_NS + MINUTE_NS


def credit(request_id: str) -> Posting:
    """Credits for one request; every second time they are the pool's."""
    if request_id.endswith("pool"):
        return grants.pool_credit(request_id, PAYER.pool_id, CREDIT_NANO, "kill test")
    return grants.manual_credit(request_id, request_id.partition("/")[0], CREDIT_NANO, "kill test")


class Doomed:
    """Books requests of every kind, and reports the outcome of each."""

    def __init__(self, ledger: LedgerService, answers: Connection) -> None:
        self._ledger = ledger
        self._answers = answers
        self._sending = threading.Lock()
        self._leases = Leases(ledger.poster, ledger.read, clock_ns=lambda: START_NS)

    def run(self, name: str) -> None:
        self._leases.start()
        kinds = (self._burst, self._burst, self._market, self._lease)
        writers = [
            threading.Thread(target=self._serve, args=(kind, f"{name}-{number}"))
            for number, kind in enumerate(kinds)
        ]
        for thread in writers:
            thread.start()
        for thread in writers:
            thread.join()

    def _serve(self, kind: Callable[[str, int], None], name: str) -> None:
        for number in count():
            kind(f"{name}-{number}", number)

    def _burst(self, request_id: str, number: int) -> None:
        self._book(credit(f"ann/{request_id}"))
        placed = self._book(burst.hold(request_id, "ann", CREDIT_NANO, EXPIRES_NS))
        held = Hold(request_id, "ann", CREDIT_NANO, placed.transfer_seqs[0], EXPIRES_NS)
        record = usage(request_id, lane="cloud", provider="acme")
        self._book(burst.capture(held, BILL, record) if number % 2 else burst.release(held))
        self._book(local.local_use(usage(f"{request_id}-local", compute_nano=COMPUTE_NANO)))

    def _market(self, request_id: str, number: int) -> None:
        """Paid half by the buyer and half by the pool, matured at once, and partly given back."""
        self._book(credit(f"bob/{request_id}"))
        self._book(credit(f"bob/{request_id}-pool"))
        shares = (Share(chart.user_paid("bob"), CREDIT_NANO // 2), Share(chart.pool_paid("lab"), CREDIT_NANO // 2))
        placed = self._book(market.hold(request_id, shares, EXPIRES_NS))
        parts = [HeldPart(share.account, share.amount_nano, seq) for share, seq in _numbered(shares, placed)]
        order = market.PurchaseHold(request_id, tuple(parts))
        sale = market.SellerBill("sam", CHARGE_NANO, fee_bps=1000)
        self._book(market.capture(order, sale, usage(request_id, lane="market")))
        self._book(earnings.matured("sam", request_id, sale.net_nano // 2, reserve_bps=1000))
        if number % 2:
            self._refund(request_id)

    def _lease(self, request_id: str, number: int) -> None:
        """Three requests at a time on one lease of the user's credits and the organization's."""
        self._book(credit(f"{PAYER.user_id}/{request_id}"))
        self._book(credit(f"{PAYER.user_id}/{request_id}-pool"))
        captures = []
        for part in range(3):
            held = self._held(f"{request_id}-{part}")
            self._leases.end(held, CHARGE_NANO // 3)
            record = usage(held.request_id, user_id=PAYER.user_id, lane="cloud", provider="acme")
            captures.append(self._leases.capture(held, CloudBill("acme", CHARGE_NANO // 3, 100), record))
        for part, captured in enumerate(captures):
            self._tell(f"usage:{request_id}-{part}", captured.result(ANSWER_S))
        if number % 2:
            self._refund(f"{request_id}-0")

    def _held(self, request_id: str) -> Hold:
        placed = self._leases.hold(request_id, PAYER, CHARGE_NANO // 3)
        return placed.result(ANSWER_S) if isinstance(placed, Future) else placed

    def _refund(self, request_id: str) -> None:
        with self._ledger.read() as session:
            charge = find_charge(session, request_id)
            assert charge is not None
            standing = find_refund_parties(session, charge, time.time_ns())
        self._book(usage_refunds.refund(charge, REFUND_NANO, "kill test", standing))

    def _book(self, posting: Posting) -> Posted:
        posted = self._ledger.post(posting)
        self._tell(posting.idem_key, posted)
        return posted

    def _tell(self, key: str, posted: Posted | None) -> None:
        assert posted is not None
        with self._sending:
            self._answers.send((key, posted.event_seq))


def _numbered(shares: tuple[Share, ...], placed: Posted) -> list[tuple[Share, int]]:
    return list(zip(shares, placed.transfer_seqs, strict=True))


def write(dsn: str, name: str, failpoint: Failpoint | None, passes: int, answers: Connection) -> None:
    """Book requests from several threads until the failpoint was passed so often, then die by SIGKILL.

    Sends (idempotency key, event number) for every answer. Without a failpoint it goes on until its parent
    kills it.
    """
    passed = count(1)

    def reach(place: Failpoint) -> None:
        if place == failpoint and next(passed) == passes:
            os.kill(os.getpid(), signal.SIGKILL)

    ledger = LedgerService(open_engine(dsn), failpoint=reach)
    ledger.poster.start()
    Doomed(ledger, answers).run(name)

"""Manage the leases of one process: requests reserve in memory, and one thread draws, books and renews.

Requests never reserve more than the ledger holds. So no number of processes, and no order of their events, spends a
credit twice. If a process dies, the reaper releases its reservation after the lease's end.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from sqlalchemy.orm import Session

from accounting.errors import HoldExpired, LedgerBusy, LedgerUnavailable, PosterStopped
from accounting.ledger.postings import Posted, UsageRecord
from accounting.ledger.writer import Writer
from accounting.money import checked_nano
from accounting.rules.held import CloudBill, Hold, Payer
from accounting.spending.funding_sources import FundingLookup
from accounting.spending.lease import Lease
from accounting.spending.lease_renewal import Capture, Draw
from accounting.spending.lease_renewer import LeaseRenewer

_log = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
# Seconds to wait after a database failure.
_PAUSE_S = 0.5
_DRAWS_MAX = 8_192


class Leases:
    """Give parts of leases on any thread. `turn` belongs to one thread, which `start` makes.

    Args:
        poster: takes the leases' events.
        open_session: returns sessions that read; called on the leases' thread only.
        clock_ns: wall-clock time in nanoseconds since 1970.
    """

    def __init__(
        self, poster: Writer, open_session: Callable[[], Session], *, clock_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._clock_ns = clock_ns
        self._leases: dict[Payer, Lease] = {}
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._work = False
        self._open = True
        self._draws = 0
        self.funding_lookup = FundingLookup(open_session, clock_ns=clock_ns)
        self._renewer = LeaseRenewer(poster, self.funding_lookup, self._lock, clock_ns)
        self._thread = threading.Thread(target=self._run, name="leases", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Book the ended requests, release all but what running requests have reserved, and end."""
        with self._changed:
            self._open = False
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def hold(self, request_id: str, payer: Payer, amount_nano: int) -> "Hold | Future[Hold]":
        """Reserve a part for a request: at once if the lease has it, else by the future.

        The future raises `InsufficientCredit` if the payer has less, this process's unused part included.

        Raises:
            AmountInvalid: no event may move this amount.
            LedgerBusy: too many requests wait already.
            PosterStopped: this process takes no more paid requests.
        """
        checked_nano(amount_nano)
        with self._changed:
            return self._reserve(self._lease_of(payer), request_id, amount_nano)

    def grow(self, held: Hold, amount_nano: int) -> "Hold | Future[Hold]":
        """Change a request's part to `amount_nano`: at once, or by a future, as in `hold`.

        If that is refused, the request keeps its part. A future that no one awaits any more needs no cleanup: the
        part ends with its request, and an ended request gets none.

        Raises:
            LedgerUnavailable: the request has ended, or the lease is gone with its part. The future raises it too.
            AmountInvalid, LedgerBusy, PosterStopped: as in `hold`.
        """
        checked_nano(amount_nano)
        with self._changed:
            lease = self._leases.get(held.payer)
            if lease is None or lease.identity != held.lease or held.request_id not in lease.reserved:
                raise LedgerUnavailable(f"{held.request_id!r} has ended, or its reservation has")
            return self._reserve(lease, held.request_id, amount_nano)

    def _reserve(self, lease: Lease, request_id: str, amount_nano: int) -> "Hold | Future[Hold]":
        # Earlier requests that wait come first.
        held = None if lease.draws else lease.reserve(request_id, amount_nano, self._clock_ns())
        if held is not None:
            return held
        if not self._open:
            raise PosterStopped("the ledger is closed")
        if self._draws >= _DRAWS_MAX:
            raise LedgerBusy(f"{_DRAWS_MAX} requests wait for credits")
        draw = Draw(request_id, amount_nano, Future(), grows=request_id in lease.reserved)
        draw.future.set_running_or_notify_cancel()
        lease.draws.append(draw)
        self._draws += 1
        self._wake()
        return draw.future

    def end(self, held: Hold, charge_nano: int) -> None:
        """End a request with its charge. The rest is free again at once."""
        with self._lock:
            lease = self._leases.get(held.payer)
            if lease is not None and lease.identity == held.lease:
                lease.end(held.request_id, charge_nano)

    def capture(self, held: Hold, bill: CloudBill | None, usage: UsageRecord) -> "Future[Posted | None]":
        """Book an ended request with the lease's next event, charged at most its reservation.

        The future returns None if the request was booked before, and raises `HoldExpired` if the lease is gone.
        """
        if bill is not None and bill.charge_nano > held.amount_nano:
            bill = CloudBill(bill.provider, held.amount_nano, bill.cost_nano, bill.price_version)
        capture = Capture(bill, usage, Future())
        capture.future.set_running_or_notify_cancel()
        with self._changed:
            lease = self._leases.get(held.payer)
            if lease is None or lease.identity != held.lease:
                capture.future.set_exception(HoldExpired(f"the lease of {held.request_id!r} is gone"))
            else:
                lease.end(held.request_id, capture.charge_nano)
                lease.captures.append(capture)
                self._wake()
        return capture.future

    def has(self, held: Hold) -> bool:
        """Return whether this process still has the lease of the hold."""
        with self._lock:
            lease = self._leases.get(held.payer)
            return lease is not None and lease.identity == held.lease

    def _lease_of(self, payer: Payer) -> Lease:
        lease = self._leases.get(payer)
        if lease is None:
            lease = self._leases[payer] = Lease(payer)
        return lease

    def _wake(self) -> None:
        if not self._work:
            self._work = True
            self._changed.notify()

    def _run(self) -> None:
        while self._wait():
            try:
                if not self.turn():
                    time.sleep(_PAUSE_S)
            except Exception:  # noqa: BLE001  the thread's edge: every caller that waits has its own time limit
                _log.exception("leases were not renewed")
        self.turn(is_closing=True)

    def _wait(self) -> bool:
        with self._changed:
            timeout_s = _LOOK_EVERY_S if self._leases else None
            self._changed.wait_for(lambda: self._work or not self._open, timeout=timeout_s)
            return self._open

    def turn(self, *, is_closing: bool = False) -> bool:
        """Book the next event of every lease that needs one.

        Return False if the ledger failed to answer for any.
        """
        with self._lock:
            self._work = False
            leases = list(self._leases.values())
        is_well = self._renewer.renew(leases, is_closing=is_closing)
        with self._lock:
            for payer in [payer for payer, lease in self._leases.items() if lease.is_empty]:
                del self._leases[payer]
            # Count what came meanwhile, and what did not fit into one event.
            self._draws = sum(len(lease.draws) for lease in self._leases.values())
            self._work = any(lease.draws or lease.captures or lease.unanswered for lease in self._leases.values())
        return is_well

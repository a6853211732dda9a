"""The leases of one process: requests reserve in memory, one thread draws, books and renews.

Never more is promised than is put aside in the books, so that no number of processes and no order of their events
spends a credit twice. What a process that died had put aside is the reaper's after the lease's end.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from sqlalchemy.orm import Session

from accounting.errors import BooksUnavailable, HoldExpired, LedgerBusy, PosterStopped
from accounting.ledger.postings import Posted, UsageRecord
from accounting.ledger.writer import Writer
from accounting.money import checked_nano
from accounting.rules.held import CloudBill, Hold, Payer
from accounting.spending.lease import Lease
from accounting.spending.purses import Purses
from accounting.spending.roll import Capture, Draw
from accounting.spending.roller import Roller

_log = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
# After a database that failed, before it is asked again.
_PAUSE_S = 0.5
_DRAWS_MAX = 8_192


class Leases:
    """Give parts of leases on any thread; `turn` belongs to one, the one that `start` makes.

    Args:
        poster: takes the leases' events.
        open_session: gives sessions that read; called on the leases' thread only.
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
        self.purses = Purses(open_session, clock_ns=clock_ns)
        self._roller = Roller(poster, self.purses, self._lock, clock_ns)
        self._thread = threading.Thread(target=self._run, name="leases", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Book what has ended, give back all but what running requests have reserved, and end."""
        with self._changed:
            self._open = False
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def hold(self, request_id: str, payer: Payer, amount_nano: int) -> "Hold | Future[Hold]":
        """Put a part aside for a request: at once where the lease has it, else the future has it.

        The future raises `InsufficientCredit` when the payer has less, with what this process has unused.

        Raises:
            AmountInvalid: no event may move so much.
            LedgerBusy: too many wait already.
            PosterStopped: this process takes no paid requests any more.
        """
        checked_nano(amount_nano)
        with self._changed:
            return self._reserve(self._lease_of(payer), request_id, amount_nano)

    def grow(self, held: Hold, amount_nano: int) -> "Hold | Future[Hold]":
        """Make a request's part one of `amount_nano`: at once, or by a future, as `hold`.

        Where that is refused the request keeps the part that it has. A future that nobody waits for any more needs
        no care: the part ends with its request, and a request that has ended gets none.

        Raises:
            BooksUnavailable: the request has ended, or the lease is gone and the part with it. So does the future.
            AmountInvalid, LedgerBusy, PosterStopped: as `hold`.
        """
        checked_nano(amount_nano)
        with self._changed:
            lease = self._leases.get(held.payer)
            if lease is None or lease.identity != held.lease or held.request_id not in lease.reserved:
                raise BooksUnavailable(f"{held.request_id!r} has ended, or its lease is gone")
            return self._reserve(lease, held.request_id, amount_nano)

    def _reserve(self, lease: Lease, request_id: str, amount_nano: int) -> "Hold | Future[Hold]":
        # Who came before, and waits, is first.
        held = None if lease.draws else lease.reserve(request_id, amount_nano, self._clock_ns())
        if held is not None:
            return held
        if not self._open:
            raise PosterStopped("the books are closed")
        if self._draws >= _DRAWS_MAX:
            raise LedgerBusy(f"{_DRAWS_MAX} requests wait for credits")
        draw = Draw(request_id, amount_nano, Future(), grows=request_id in lease.reserved)
        draw.future.set_running_or_notify_cancel()
        lease.draws.append(draw)
        self._draws += 1
        self._wake()
        return draw.future

    def end(self, held: Hold, charge_nano: int) -> None:
        """A request ended and came to so much; the rest is free again at once."""
        with self._lock:
            lease = self._leases.get(held.payer)
            if lease is not None and lease.identity == held.lease:
                lease.end(held.request_id, charge_nano)

    def capture(self, held: Hold, bill: CloudBill | None, usage: UsageRecord) -> "Future[Posted | None]":
        """Book an ended request with the lease's next event, charged at most what was reserved.

        The future has None where the request was booked before, and raises `HoldExpired` where the lease is gone.
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
        """Whether what the hold is a part of is still this process's."""
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
            except Exception:  # noqa: BLE001  the thread's edge: who waits has a time limit of its own
                _log.exception("leases were not rolled")
        self.turn(is_closing=True)

    def _wait(self) -> bool:
        with self._changed:
            timeout_s = _LOOK_EVERY_S if self._leases else None
            self._changed.wait_for(lambda: self._work or not self._open, timeout=timeout_s)
            return self._open

    def turn(self, *, is_closing: bool = False) -> bool:
        """Roll every lease that has something to do; False where the books did not answer for one of them."""
        with self._lock:
            self._work = False
            leases = list(self._leases.values())
        is_well = self._roller.roll(leases, is_closing=is_closing)
        with self._lock:
            for payer in [payer for payer, lease in self._leases.items() if lease.is_empty]:
                del self._leases[payer]
            # What came meanwhile, and what one event did not hold.
            self._draws = sum(len(lease.draws) for lease in self._leases.values())
            self._work = any(lease.draws or lease.captures or lease.unanswered for lease in self._leases.values())
        return is_well

"""The leases of one process: requests reserve in memory, one thread draws, books and renews.

Never more is promised than is put aside in the books, so that no number of processes and no order of their events
spends a credit twice. What a process that died had put aside is the reaper's after the lease's end.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from accounting.errors import (
    AlreadyResolved,
    BooksUnavailable,
    DatabaseFailing,
    HoldExpired,
    HoldNotFound,
    InsufficientCredit,
    LedgerBusy,
    LedgerError,
    PosterStopped,
    UsageBooked,
)
from accounting.ledger.postings import MAX_USAGES, Posted, UsageRecord
from accounting.ledger.writer import Writer
from accounting.money import checked_nano
from accounting.rules.held import CloudBill, Hold
from accounting.spending.lease import Capture, Draw, Lease, Roll, fail_captures, fail_draws

_log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 60.0
_LOOK_EVERY_S = 1.0
# After a database that failed, before it is asked again.
_PAUSE_S = 0.5
_DRAWS_MAX = 8_192
# Another process may take credits between an answer and the next try.
_TRIES_MAX = 16


class Leases:
    """Give parts of leases on any thread; `turn` belongs to one, the one that `start` makes.

    Args:
        poster: takes the leases' events.
        clock_ns: wall-clock time in nanoseconds since 1970.
    """

    def __init__(self, poster: Writer, *, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._poster = poster
        self._clock_ns = clock_ns
        self._leases: dict[str, Lease] = {}
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._work = False
        self._open = True
        self._draws = 0
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

    def hold(self, request_id: str, user_id: str, amount_nano: int) -> "Hold | Future[Hold]":
        """Put a part aside for a request: at once where the lease has it, else the future has it.

        The future raises `InsufficientCredit` when the user has less, with what this process's lease has unused.

        Raises:
            AmountInvalid: no event may move so much.
            LedgerBusy: too many wait already.
            PosterStopped: this process takes no paid requests any more.
        """
        checked_nano(amount_nano)
        with self._changed:
            lease = self._leases.get(user_id)
            if lease is not None and not lease.draws:
                held = lease.reserve(request_id, amount_nano, self._clock_ns())
                if held is not None:
                    return held
            if not self._open:
                raise PosterStopped("the books are closed")
            if self._draws >= _DRAWS_MAX:
                raise LedgerBusy(f"{_DRAWS_MAX} requests wait for credits")
            draw = Draw(request_id, amount_nano, Future())
            draw.future.set_running_or_notify_cancel()
            self._lease_of(user_id).draws.append(draw)
            self._draws += 1
            self._wake()
        return draw.future

    def end(self, held: Hold, charge_nano: int) -> None:
        """A request ended and came to so much; the rest is free again at once."""
        with self._lock:
            lease = self._leases.get(held.user_id)
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
            lease = self._leases.get(held.user_id)
            if lease is None or lease.identity != held.lease:
                capture.future.set_exception(HoldExpired(f"the lease of {held.request_id!r} is gone"))
            else:
                lease.end(held.request_id, capture.charge_nano)
                lease.captures.append(capture)
                self._wake()
        return capture.future

    def _lease_of(self, user_id: str) -> Lease:
        lease = self._leases.get(user_id)
        if lease is None:
            lease = self._leases[user_id] = Lease(user_id)
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
        rolls = [(lease, roll) for lease in leases if (roll := self._next_roll(lease, is_closing=is_closing))]
        # All are under way before the first is waited for: they share the writer's groups.
        started = [(lease, roll, self._submit(roll)) for lease, roll in rolls]
        answered = [self._finish(lease, roll, future) for lease, roll, future in started]
        with self._lock:
            for user_id in [user_id for user_id, lease in self._leases.items() if lease.is_empty]:
                del self._leases[user_id]
        return all(answered)

    def _next_roll(
        self,
        lease: Lease,
        *,
        captures_max: int = MAX_USAGES,
        affordable_nano: int | None = None,
        is_closing: bool = False,
    ) -> Roll | None:
        """The lease's next event with as many captures as fit; one that no event may hold fails by itself."""
        with self._lock:
            if lease.unanswered:
                return lease.unanswered
            self._draws -= len(lease.draws)
            while True:
                try:
                    roll = lease.roll(
                        self._clock_ns(),
                        captures_max=captures_max,
                        affordable_nano=affordable_nano,
                        is_closing=is_closing,
                    )
                except LedgerError as error:
                    captures_max = min(captures_max, len(lease.captures)) // 2
                    if not captures_max:
                        lease.give_up(error)
                        captures_max = MAX_USAGES
                else:
                    self._work |= bool(lease.captures)
                    return roll

    def _submit(self, roll: Roll) -> "Future[Posted] | LedgerError":
        try:
            return self._poster.submit(roll.posting)
        except LedgerError as error:
            return error

    def _finish(self, lease: Lease, roll: Roll, started: "Future[Posted] | LedgerError") -> bool:
        """Wait for an answer and do what follows from it; a denial is followed by another try."""
        for _ in range(_TRIES_MAX):
            answer = _answer(started)
            if isinstance(answer, Posted):
                self._grant(lease, roll, answer)
                return True
            if isinstance(answer, BooksUnavailable):
                self._leave_unanswered(lease, roll, answer)
                return False
            again = self._after_denial(lease, roll, answer)
            if again is None:
                return True
            roll, started = again, self._submit(again)
        with self._lock:
            lease.captures[:0] = roll.captures
        roll.fail(DatabaseFailing("the books changed their mind too often"))
        return False

    def _grant(self, lease: Lease, roll: Roll, posted: Posted) -> None:
        with self._lock:
            lease.unanswered = None
            holds = {hold.request_id: hold for hold in lease.rolled(roll, posted, self._clock_ns())}
        for draw in roll.draws:
            if draw.request_id in holds:
                draw.future.set_result(holds[draw.request_id])
            else:
                draw.future.set_exception(DatabaseFailing("the books were too slow for a lease"))
        for capture in roll.captures:
            if not capture.future.done():
                capture.future.set_result(posted)

    def _leave_unanswered(self, lease: Lease, roll: Roll, error: BooksUnavailable) -> None:
        """Booked or not, nobody knows: the same event is sent again until that is known, nothing else before."""
        with self._lock:
            lease.unanswered = Roll(roll.posting, roll.captures, [], roll.amount_nano, roll.expires_ns)
            # Who came meanwhile would wait for as long as the books are away.
            draws, lease.draws = roll.draws + lease.draws, []
            self._draws -= len(draws) - len(roll.draws)
            self._work = True
        fail_draws(draws, error)
        fail_captures(roll.captures, error)

    def _after_denial(self, lease: Lease, roll: Roll, denial: LedgerError) -> Roll | None:
        """Make of what was denied what may be booked."""
        affordable_nano, captures_max = None, MAX_USAGES
        with self._lock:
            lease.unanswered = None
            if isinstance(denial, UsageBooked):
                self._drop_booked(lease, roll, denial.request_ids)
            elif isinstance(denial, HoldExpired | AlreadyResolved | HoldNotFound):
                lease.lose()
                fail_captures(roll.captures + lease.captures, HoldExpired("the lease was given back by others"))
                lease.captures.clear()
                lease.draws[:0] = roll.draws
            elif isinstance(denial, InsufficientCredit):
                charged_nano = sum(capture.charge_nano for capture in roll.captures)
                affordable_nano = denial.available_nano + lease.amount_nano - charged_nano
                lease.captures[:0], lease.draws[:0] = roll.captures, roll.draws
            elif len(roll.captures) > 1:
                captures_max = len(roll.captures) // 2
                lease.captures[:0], lease.draws[:0] = roll.captures, roll.draws
            else:
                for capture in roll.captures:
                    lease.forget(capture.usage.request_id)
                roll.fail(denial)
                roll.draws.clear()
            self._draws += len(roll.draws)
        return self._next_roll(lease, captures_max=captures_max, affordable_nano=affordable_nano)

    def _drop_booked(self, lease: Lease, roll: Roll, request_ids: frozenset[str]) -> None:
        rest = []
        for capture in roll.captures:
            if capture.usage.request_id in request_ids:
                lease.forget(capture.usage.request_id)
                if not capture.future.done():
                    capture.future.set_result(None)
            else:
                rest.append(capture)
        lease.captures[:0], lease.draws[:0] = rest, roll.draws


def _answer(started: "Future[Posted] | LedgerError") -> Posted | LedgerError:
    if isinstance(started, LedgerError):
        return started
    try:
        return started.result(ANSWER_TIMEOUT_S)
    except LedgerError as error:
        return error
    except TimeoutError:
        return DatabaseFailing("the books did not answer in time")

"""Has the leases' events booked: reads what there is to draw from, waits for the books, follows what they deny."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress

from accounting.errors import (
    AlreadyResolved,
    BooksUnavailable,
    DatabaseFailing,
    HoldExpired,
    HoldNotFound,
    InsufficientCredit,
    LedgerError,
    UsageBooked,
)
from accounting.ledger.postings import MAX_USAGES, Posted
from accounting.ledger.writer import Writer
from accounting.rules.held import Payer
from accounting.spending.lease import Lease
from accounting.spending.purse import Purse
from accounting.spending.purses import Purses
from accounting.spending.roll import Roll, fail_captures, fail_draws, tell_ended

_log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 30.0
"""How long the books may take for one turn of all leases: as long as those who draw wait."""
# Another process may take credits between an answer and the next try.
_TRIES_MAX = 16
# Who was refused a moment ago is looked at before the books are asked again, for so many nanoseconds: many at once
# by one reading, where each event that the books deny takes time from those who can pay.
_POOR_NS = 10**9
_POOR_MAX = 16_384
# Fewer are read for one after the other.
_SURVEYED_LEAST = 2


class Roller:
    """Belongs to the leases' thread. `lock` is held whenever a lease is touched, and never while anybody waits."""

    def __init__(self, poster: Writer, purses: Purses, lock: threading.Lock, clock_ns: Callable[[], int]) -> None:
        self._poster = poster
        self._purses = purses
        self._lock = lock
        self._clock_ns = clock_ns
        # When this turn's answers must be here, on the monotonic clock.
        self._until_s = 0.0
        self._poor: dict[Payer, int] = {}
        # What this turn has read of all who lacked something, as long as it may be true.
        self._seen: dict[Payer, Purse] = {}
        self._seen_nano: dict[str, int] = {}

    def roll(self, leases: Sequence[Lease], *, is_closing: bool = False) -> bool:
        """Book what there is to book of every lease; False where the books did not answer for one of them."""
        self._until_s = time.monotonic() + ANSWER_TIMEOUT_S
        self._survey([lease for lease in leases if not lease.is_single or self._is_poor(lease)])
        rolls = [(lease, roll) for lease in leases if (roll := self._next(lease, is_closing=is_closing))]
        short = [lease for lease in leases if lease.draws]
        # All are under way before the first is waited for: they share the writer's groups.
        started = [(lease, roll, self._submit(roll)) for lease, roll in rolls]
        denied, is_well = [], True
        for lease, roll, future in started:
            answer = self._answer(future)
            if _is_denial(answer):
                denied.append((lease, roll, answer))
            else:
                is_well &= self._settle(lease, roll, answer)
        # Now that no event of theirs is under way, leases may be asked to give back what others lack.
        self._survey([lease for lease, _, answer in denied if isinstance(answer, InsufficientCredit)], denied=True)
        for lease, roll, answer in denied:
            if lease.unanswered:
                # It was asked to give back what another one lacks, and nobody knows yet whether it has.
                self._put_off(lease, roll)
                is_well = False
            else:
                is_well &= self._finish(lease, roll, answer, leases)
        self._survey(short)
        for lease in short:
            if time.monotonic() >= self._until_s:
                return False
            if not lease.unanswered:
                is_well &= self._serve_short(lease, leases)
        return is_well

    def _serve_short(self, lease: Lease, others: Sequence[Lease]) -> bool:
        """Serve draws that a first look had too little for with what other leases give back, or refuse them."""
        self._recall(lease, others)
        roll = self._next(lease, is_final=True)
        return roll is None or self._finish(lease, roll, self._answer(self._submit(roll)))

    def _next(
        self,
        lease: Lease,
        *,
        captures_max: int = MAX_USAGES,
        is_final: bool = False,
        is_closing: bool = False,
    ) -> Roll | None:
        """The lease's next event with as many captures as fit; one that no event may hold fails by itself.

        A final one is made with what there is now: after a denial, or where a look has found too little.
        """
        if lease.unanswered:
            return lease.unanswered
        available = self._available(lease, anew=is_final) if lease.draws else None
        asked = list(lease.draws) if is_final else []
        with self._lock:
            while True:
                try:
                    roll = lease.roll(
                        self._clock_ns(),
                        available,
                        captures_max=captures_max,
                        is_final=is_final,
                        is_closing=is_closing,
                    )
                    if any(draw.future.done() for draw in asked):
                        self._remember_poor(lease)
                    return roll
                except LedgerError as error:
                    captures_max = min(captures_max, len(lease.captures)) // 2
                    if not captures_max:
                        lease.give_up(error)
                        captures_max = MAX_USAGES

    def _available(self, lease: Lease, *, anew: bool) -> dict[str, int] | None:
        """What may be drawn from the lease's accounts; None where there is one, which the books themselves know.

        Those that draw are told where it cannot be read.
        """
        seen = self._seen.get(lease.payer)
        if seen is not None and all(part.account in self._seen_nano for part in lease.parts):
            lease.purse = seen
            return {account: self._seen_nano[account] for account in lease.accounts}
        try:
            lease.purse = self._purses.look(lease.payer) if anew else self._purses.of(lease.payer)
            knows_one = lease.is_single and not anew and not self._is_poor(lease)
            return None if knows_one else self._purses.available(lease.accounts)
        except BooksUnavailable as error:
            with self._lock:
                draws, lease.draws = lease.draws, []
            fail_draws(draws, error)
            return None

    def _survey(self, leases: Sequence[Lease], *, denied: bool = False) -> None:
        """Read what there is for all of them at once; where that fails each is told so when it is read for."""
        self._seen, self._seen_nano = {}, {}
        lacking = [lease for lease in leases if (lease.draws or denied) and not lease.unanswered]
        if len(lacking) < _SURVEYED_LEAST:
            return
        accounts = {part.account for lease in lacking for part in lease.parts}
        with suppress(BooksUnavailable):
            self._seen, self._seen_nano = self._purses.survey({lease.payer for lease in lacking}, accounts)

    def _is_poor(self, lease: Lease) -> bool:
        return self._clock_ns() < self._poor.get(lease.payer, 0)

    def _remember_poor(self, lease: Lease) -> None:
        if len(self._poor) >= _POOR_MAX:
            self._poor.clear()
        self._poor[lease.payer] = self._clock_ns() + _POOR_NS

    def _submit(self, roll: Roll) -> "Future[Posted] | LedgerError":
        try:
            return self._poster.submit(roll.posting)
        except LedgerError as error:
            return error

    def _answer(self, started: "Future[Posted] | LedgerError") -> Posted | LedgerError:
        if isinstance(started, LedgerError):
            return started
        try:
            return started.result(max(0.0, self._until_s - time.monotonic()))
        except LedgerError as error:
            return error
        except TimeoutError:
            return DatabaseFailing("the books did not answer in time")

    def _settle(self, lease: Lease, roll: Roll, answer: Posted | LedgerError) -> bool:
        """An answer that ends the matter, or at least the turn: whether there was one."""
        if isinstance(answer, Posted):
            self._grant(lease, roll, answer)
            return True
        self._leave_unanswered(lease, roll, answer)
        return False

    def _finish(
        self, lease: Lease, roll: Roll, answer: Posted | LedgerError, others: Sequence[Lease] = ()
    ) -> bool:
        """Make of what was denied what may be booked, until it is; False where the books stop answering."""
        for _ in range(_TRIES_MAX):
            if isinstance(answer, Posted) or not _is_denial(answer):
                return self._settle(lease, roll, answer)
            if isinstance(answer, InsufficientCredit):
                self._recall(lease, others)
            again = self._after_denial(lease, roll, answer)
            # What it was made of is not asked a second time: what was read may not be true any more.
            self._seen.pop(lease.payer, None)
            if again is None:
                return True
            roll, answer = again, self._answer(self._submit(again))
        if not _is_denial(answer):
            return self._settle(lease, roll, answer)
        # Who ended them brings them again.
        with self._lock:
            lease.denied()
        _log.error("a lease was not rolled: %s", answer)
        roll.fail(DatabaseFailing("the books changed their mind too often"))
        return False

    def _recall(self, lease: Lease, others: Sequence[Lease]) -> None:
        """Have this process's other leases on the same accounts give back what no request needs of them."""
        accounts = lease.accounts
        rolls = []
        for other in others:
            is_beside = any(part.account in accounts for part in other.parts)
            if other is lease or other.unanswered or not is_beside or other.free_nano <= 0:
                continue
            if roll := self._next(other, is_closing=True):
                rolls.append((other, roll, self._submit(roll)))
        if rolls:
            # What they give back is there for everybody.
            self._seen.clear()
        for other, roll, future in rolls:
            self._finish(other, roll, self._answer(future))

    def _grant(self, lease: Lease, roll: Roll, posted: Posted) -> None:
        now_ns = self._clock_ns()
        with self._lock:
            lease.unanswered = None
            lease.rolled(roll, posted, now_ns)
            granted = [(draw, lease.grant(draw, now_ns), draw.request_id in lease.reserved) for draw in roll.draws]
        for draw, held, is_running in granted:
            if held is not None:
                draw.future.set_result(held)
            elif draw.grows and not is_running:
                tell_ended(draw)
            else:
                draw.future.set_exception(DatabaseFailing("the books were too slow for a lease"))
        for capture in roll.captures:
            if not capture.future.done():
                capture.future.set_result(posted)

    def _leave_unanswered(self, lease: Lease, roll: Roll, error: LedgerError) -> None:
        """Booked or not, nobody knows: the same event is sent again until that is known, nothing else before."""
        with self._lock:
            lease.unanswered = Roll(roll.posting, roll.captures, [], roll.shares, roll.expires_ns)
            # Who came meanwhile would wait for as long as the books are away.
            draws, lease.draws = roll.draws + lease.draws, []
        fail_draws(draws, error)
        fail_captures(roll.captures, error)

    def _put_off(self, lease: Lease, roll: Roll) -> None:
        """What was denied comes behind what is not answered; who draws would wait for as long as that takes."""
        with self._lock:
            lease.captures[:0] = roll.captures
        fail_draws(roll.draws, DatabaseFailing("the books did not answer in time"))

    def _after_denial(self, lease: Lease, roll: Roll, denial: LedgerError) -> Roll | None:
        """Make of what was denied what may be booked."""
        captures_max = MAX_USAGES
        is_final = isinstance(denial, InsufficientCredit)
        with self._lock:
            lease.denied()
            if isinstance(denial, UsageBooked):
                self._drop_booked(lease, roll, denial.request_ids)
            elif isinstance(denial, HoldExpired | AlreadyResolved | HoldNotFound):
                lease.lose()
                fail_captures(roll.captures + lease.captures, HoldExpired("the lease was given back by others"))
                lease.captures.clear()
                lease.draws[:0] = roll.draws
            elif isinstance(denial, InsufficientCredit) and denial.account not in roll.accounts:
                # More has ended than was put aside for it: what was delivered is charged beside the lease.
                for capture in roll.captures:
                    lease.forget(capture.usage.request_id)
                fail_captures(roll.captures, HoldExpired("the lease has less than was delivered on it"))
                lease.draws[:0] = roll.draws
            elif isinstance(denial, InsufficientCredit):
                lease.captures[:0], lease.draws[:0] = roll.captures, roll.draws
            elif len(roll.captures) > 1:
                captures_max = len(roll.captures) // 2
                lease.captures[:0], lease.draws[:0] = roll.captures, roll.draws
            else:
                for capture in roll.captures:
                    lease.forget(capture.usage.request_id)
                roll.fail(denial)
        return self._next(lease, captures_max=captures_max, is_final=is_final)

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


def _is_denial(answer: Posted | LedgerError) -> bool:
    return isinstance(answer, LedgerError) and not isinstance(answer, BooksUnavailable)

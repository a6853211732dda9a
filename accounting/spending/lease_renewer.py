"""Book the leases' events: read the balances to draw from, wait for the ledger, and handle denials."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress

from accounting.errors import (
    AlreadyResolved,
    DatabaseFailing,
    HoldExpired,
    HoldNotFound,
    InsufficientCredit,
    LedgerError,
    LedgerUnavailable,
    UsageBooked,
)
from accounting.ledger.postings import MAX_USAGES, Posted
from accounting.ledger.writer import Writer
from accounting.rules.held import Payer
from accounting.spending.funding import Funding
from accounting.spending.funding_sources import FundingLookup
from accounting.spending.lease import Lease
from accounting.spending.lease_renewal import LeaseRenewal, fail_captures, fail_draws, tell_ended

_log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 30.0
"""Time limit of the ledger for one turn of all leases, in seconds: as long as requests wait for a draw."""
# Another process may take credits between an answer and the next attempt.
_TRIES_MAX = 16
# For this many nanoseconds after a refusal, balances are read before the ledger is asked again. One read covers
# many payers, while each event that the ledger denies takes time from those who can pay.
_POOR_NS = 10**9
_POOR_MAX = 16_384
# Below this number, balances are read one by one.
_SURVEYED_LEAST = 2


class LeaseRenewer:
    """Belongs to the leases' thread. It holds `lock` whenever it touches a lease, and never while it waits."""

    def __init__(
        self, poster: Writer, funding_lookup: FundingLookup, lock: threading.Lock, clock_ns: Callable[[], int]
    ) -> None:
        self._poster = poster
        self._funding_lookup = funding_lookup
        self._lock = lock
        self._clock_ns = clock_ns
        # The deadline for this turn's answers, on the monotonic clock.
        self._until_s = 0.0
        self._poor: dict[Payer, int] = {}
        # Balances that this turn has read for payers who lacked credits, while they may still be true.
        self._seen: dict[Payer, Funding] = {}
        self._seen_nano: dict[str, int] = {}

    def renew(self, leases: Sequence[Lease], *, is_closing: bool = False) -> bool:
        """Book what is due of every lease. Return False if the ledger failed to answer for any."""
        self._until_s = time.monotonic() + ANSWER_TIMEOUT_S
        self._survey([lease for lease in leases if not lease.is_single or self._is_poor(lease)])
        renewals = [(lease, renewal) for lease in leases if (renewal := self._next(lease, is_closing=is_closing))]
        short = [lease for lease in leases if lease.draws]
        # Submit all before waiting for the first: they share the writer's groups.
        started = [(lease, renewal, self._submit(renewal)) for lease, renewal in renewals]
        denied, is_well = [], True
        for lease, renewal, future in started:
            answer = self._answer(future)
            if _is_denial(answer):
                denied.append((lease, renewal, answer))
            else:
                is_well &= self._settle(lease, renewal, answer)
        # No event of these leases is in flight now, so other leases may be asked to give back what they lack.
        self._survey([lease for lease, _, answer in denied if isinstance(answer, InsufficientCredit)], denied=True)
        for lease, renewal, answer in denied:
            if lease.unanswered:
                # It was asked to give back what another one lacks, and the outcome is unknown yet.
                self._put_off(lease, renewal)
                is_well = False
            else:
                is_well &= self._finish(lease, renewal, answer, leases)
        self._survey(short)
        for lease in short:
            if time.monotonic() >= self._until_s:
                return False
            if not lease.unanswered:
                is_well &= self._serve_short(lease, leases)
        return is_well

    def _serve_short(self, lease: Lease, others: Sequence[Lease]) -> bool:
        """Serve draws that lacked credits with what other leases give back, or refuse them."""
        self._recall(lease, others)
        renewal = self._next(lease, is_final=True)
        return renewal is None or self._finish(lease, renewal, self._answer(self._submit(renewal)))

    def _next(
        self,
        lease: Lease,
        *,
        captures_max: int = MAX_USAGES,
        is_final: bool = False,
        is_closing: bool = False,
    ) -> LeaseRenewal | None:
        """Return the lease's next event with as many captures as fit. A capture that fits no event fails alone.

        A final event uses the current balances: after a denial, or if an earlier read found too little.
        """
        if lease.unanswered:
            return lease.unanswered
        available = self._available(lease, refresh=is_final) if lease.draws else None
        draws = list(lease.draws) if is_final else []
        with self._lock:
            while True:
                try:
                    renewal = lease.renew(
                        self._clock_ns(),
                        available,
                        captures_max=captures_max,
                        is_final=is_final,
                        is_closing=is_closing,
                    )
                    if any(draw.future.done() for draw in draws):
                        self._remember_poor(lease)
                    return renewal
                except LedgerError as error:
                    captures_max = min(captures_max, len(lease.captures)) // 2
                    if not captures_max:
                        lease.give_up(error)
                        captures_max = MAX_USAGES

    def _available(self, lease: Lease, *, refresh: bool) -> dict[str, int] | None:
        """Return what may be drawn from the lease's accounts; None for a single account, which the ledger checks.

        If it cannot be read, the draws fail.
        """
        seen = self._seen.get(lease.payer)
        if seen is not None and all(part.account in self._seen_nano for part in lease.parts):
            lease.funding = seen
            return {account: self._seen_nano[account] for account in lease.accounts}
        try:
            lease.funding = (
                self._funding_lookup.look(lease.payer) if refresh else self._funding_lookup.of(lease.payer)
            )
            knows_one = lease.is_single and not refresh and not self._is_poor(lease)
            return None if knows_one else self._funding_lookup.available(lease.accounts)
        except LedgerUnavailable as error:
            with self._lock:
                draws, lease.draws = lease.draws, []
            fail_draws(draws, error)
            return None

    def _survey(self, leases: Sequence[Lease], *, denied: bool = False) -> None:
        """Read the balances for all these leases at once. If that fails, each lease reads its own later."""
        self._seen, self._seen_nano = {}, {}
        lacking = [lease for lease in leases if (lease.draws or denied) and not lease.unanswered]
        if len(lacking) < _SURVEYED_LEAST:
            return
        accounts = {part.account for lease in lacking for part in lease.parts}
        with suppress(LedgerUnavailable):
            self._seen, self._seen_nano = self._funding_lookup.survey({lease.payer for lease in lacking}, accounts)

    def _is_poor(self, lease: Lease) -> bool:
        return self._clock_ns() < self._poor.get(lease.payer, 0)

    def _remember_poor(self, lease: Lease) -> None:
        if len(self._poor) >= _POOR_MAX:
            self._poor.clear()
        self._poor[lease.payer] = self._clock_ns() + _POOR_NS

    def _submit(self, renewal: LeaseRenewal) -> "Future[Posted] | LedgerError":
        try:
            return self._poster.submit(renewal.posting)
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
            return DatabaseFailing("the ledger did not answer in time")

    def _settle(self, lease: Lease, renewal: LeaseRenewal, answer: Posted | LedgerError) -> bool:
        """Handle an answer that is no denial. Return whether the ledger answered."""
        if isinstance(answer, Posted):
            self._grant(lease, renewal, answer)
            return True
        self._leave_unanswered(lease, renewal, answer)
        return False

    def _finish(
        self, lease: Lease, renewal: LeaseRenewal, answer: Posted | LedgerError, others: Sequence[Lease] = ()
    ) -> bool:
        """Rebuild a denied event until the ledger takes it. Return False if it stops answering."""
        for _ in range(_TRIES_MAX):
            if isinstance(answer, Posted) or not _is_denial(answer):
                return self._settle(lease, renewal, answer)
            if isinstance(answer, InsufficientCredit):
                self._recall(lease, others)
            again = self._after_denial(lease, renewal, answer)
            # Do not reuse what the denied event was built from: it may no longer be true.
            self._seen.pop(lease.payer, None)
            if again is None:
                return True
            renewal, answer = again, self._answer(self._submit(again))
        if not _is_denial(answer):
            return self._settle(lease, renewal, answer)
        # The caller that ended these requests submits them again.
        with self._lock:
            lease.denied()
        _log.error("a lease was not renewed: %s", answer)
        renewal.fail(DatabaseFailing("the ledger changed its mind too often"))
        return False

    def _recall(self, lease: Lease, others: Sequence[Lease]) -> None:
        """Let this process's other leases on the same accounts release what no request needs."""
        accounts = lease.accounts
        renewals = []
        for other in others:
            is_beside = any(part.account in accounts for part in other.parts)
            if other is lease or other.unanswered or not is_beside or other.free_nano <= 0:
                continue
            if renewal := self._next(other, is_closing=True):
                renewals.append((other, renewal, self._submit(renewal)))
        if renewals:
            # Any payer may take what they release, so earlier readings are void.
            self._seen.clear()
        for other, renewal, future in renewals:
            self._finish(other, renewal, self._answer(future))

    def _grant(self, lease: Lease, renewal: LeaseRenewal, posted: Posted) -> None:
        now_ns = self._clock_ns()
        with self._lock:
            lease.unanswered = None
            lease.renewed(renewal, posted, now_ns)
            granted = [
                (draw, lease.grant(draw, now_ns), draw.request_id in lease.reserved) for draw in renewal.draws
            ]
        for draw, held, is_running in granted:
            if held is not None:
                draw.future.set_result(held)
            elif draw.grows and not is_running:
                tell_ended(draw)
            else:
                draw.future.set_exception(DatabaseFailing("the ledger was too slow for a lease"))
        for capture in renewal.captures:
            if not capture.future.done():
                capture.future.set_result(posted)

    def _leave_unanswered(self, lease: Lease, renewal: LeaseRenewal, error: LedgerError) -> None:
        """Keep an event with an unknown outcome: send it again until it is answered, and nothing else before."""
        with self._lock:
            lease.unanswered = LeaseRenewal(
                renewal.posting, renewal.captures, [], renewal.shares, renewal.expires_ns
            )
            # Draws that came meanwhile would wait for as long as the ledger is away.
            draws, lease.draws = renewal.draws + lease.draws, []
        fail_draws(draws, error)
        fail_captures(renewal.captures, error)

    def _put_off(self, lease: Lease, renewal: LeaseRenewal) -> None:
        """Queue the denied captures behind an unanswered event, and fail the draws, which would wait too long."""
        with self._lock:
            lease.captures[:0] = renewal.captures
        fail_draws(renewal.draws, DatabaseFailing("the ledger did not answer in time"))

    def _after_denial(self, lease: Lease, renewal: LeaseRenewal, denial: LedgerError) -> LeaseRenewal | None:
        """Build an event that the ledger may take from a denied one."""
        captures_max = MAX_USAGES
        is_final = isinstance(denial, InsufficientCredit)
        with self._lock:
            lease.denied()
            if isinstance(denial, UsageBooked):
                self._drop_booked(lease, renewal, denial.request_ids)
            elif isinstance(denial, HoldExpired | AlreadyResolved | HoldNotFound):
                lease.lose()
                fail_captures(renewal.captures + lease.captures, HoldExpired("the lease was given back by others"))
                lease.captures.clear()
                lease.draws[:0] = renewal.draws
            elif isinstance(denial, InsufficientCredit) and denial.account not in renewal.accounts:
                # More has ended than was reserved for it: charge what was delivered outside the lease.
                for capture in renewal.captures:
                    lease.forget(capture.usage.request_id)
                fail_captures(renewal.captures, HoldExpired("the lease has less than was delivered on it"))
                lease.draws[:0] = renewal.draws
            elif isinstance(denial, InsufficientCredit):
                lease.captures[:0], lease.draws[:0] = renewal.captures, renewal.draws
            elif len(renewal.captures) > 1:
                captures_max = len(renewal.captures) // 2
                lease.captures[:0], lease.draws[:0] = renewal.captures, renewal.draws
            else:
                for capture in renewal.captures:
                    lease.forget(capture.usage.request_id)
                renewal.fail(denial)
        return self._next(lease, captures_max=captures_max, is_final=is_final)

    def _drop_booked(self, lease: Lease, renewal: LeaseRenewal, request_ids: frozenset[str]) -> None:
        rest = []
        for capture in renewal.captures:
            if capture.usage.request_id in request_ids:
                lease.forget(capture.usage.request_id)
                if not capture.future.done():
                    capture.future.set_result(None)
            else:
                rest.append(capture)
        lease.captures[:0], lease.draws[:0] = rest, renewal.draws


def _is_denial(answer: Posted | LedgerError) -> bool:
    return isinstance(answer, LedgerError) and not isinstance(answer, LedgerUnavailable)

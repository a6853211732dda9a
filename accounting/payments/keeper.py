"""The thread that keeps payments going: the inbox every few seconds, Stripe against the books and payouts daily.

Of several gateways one at a time does this. Whatever it is in the midst of may be cut off: everything goes on from
what is written down.
"""

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from accounting.money import format_usd
from accounting.payments.chores import Chores, Done
from accounting.payments.errors import PaymentError, StripeUnavailable, WrongAccount
from accounting.payments.frozen import Frozen
from accounting.payments.mode import keep_account
from accounting.payments.payments import Payments
from accounting.payments.purge import DAYS_KEPT_MIN, purge
from accounting.payments.reconciliation import Report, Unmatched
from accounting.payments.standing import RECONCILIATION

_log = logging.getLogger(__name__)

PayoutSchedule: TypeAlias = Literal["off", "daily", "weekly"]

_TICK, _PAYOUTS = "tick", "payouts"
_TURN_S = 120.0
# One that failed is tried again after so long.
_AGAIN_S = 600.0
_SHOWN_MAX = 100
_DAY_NS = 24 * 3600 * 10**9
_NEVER = Done(0, MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Schedule:
    """How often payments look around, in seconds, and from which hour of the day (UTC) daily things are due."""

    tick_s: float = 5.0
    hour: int = 3
    payouts: PayoutSchedule = "off"
    days_kept: int = DAYS_KEPT_MIN


@dataclass(frozen=True, slots=True)
class State:
    """How payments are, as of the last look: messages that wait or failed, and the last reconciliation."""

    waiting: int = 0
    failed: int = 0
    reconciliation: Done = _NEVER

    @property
    def inbox(self) -> dict[str, int]:
        return {"waiting": self.waiting, "failed": self.failed}


class Keeper:
    """Owns the thread; `state` may be read from any other."""

    def __init__(self, payments: Payments, chores: Chores, frozen: Frozen, schedule: Schedule) -> None:
        self._payments = payments
        self._chores = chores
        self._frozen = frozen
        self._schedule = schedule
        self._is_over = threading.Event()
        self._news = threading.Event()
        self._reconciling = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="payments", daemon=True)
        self._is_account_known = False
        self.state = State()
        self.wrong: WrongAccount | None = None
        """Why nothing may be asked of Stripe: the key is of another account than these books."""

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Return whether the thread ended in time; what it was in the midst of goes on at the next start."""
        self._is_over.set()
        self._news.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def wake(self) -> None:
        """Something has come: look now rather than at the next tick."""
        self._news.set()

    def reconcile(self) -> Mapping[str, Any]:
        """Compare Stripe with the books now, and return what was found as others see it, too.

        Raises StripeUnavailable where Stripe does not answer, or somebody else compares at this moment.
        """
        with self._reconciling:
            if not self._chores.take(RECONCILIATION, _AGAIN_S):
                raise StripeUnavailable("another gateway compares Stripe with the books just now")
            found = _as_note(self._payments.reconciliation.run())
            self._chores.done(RECONCILIATION, found)
        return found

    def _run(self) -> None:
        while not self._is_over.is_set():
            self._news.clear()
            try:
                self.look()
            except Exception:  # noqa: BLE001  the thread's edge: whatever one look meets, the next one comes
                _log.exception("payments stand still")
            # Whoever ends this says so first and wakes us then: nothing that is said after the question gets lost.
            if not self._is_over.is_set():
                self._news.wait(self._schedule.tick_s)

    def look(self) -> None:
        """One round: what is due is done if it is this gateway's turn; everybody sees how things are.

        Raises what Stripe or the books raise; how things are is seen all the same.
        """
        try:
            if self._is_our_account() and self._chores.take(_TICK, _TURN_S):
                try:
                    if self._payments.tick():
                        self._news.set()
                finally:
                    if not self._is_over.is_set():
                        self._look_daily()
        finally:
            self._see()

    def _is_our_account(self) -> bool:
        """Whether the key is of the account that the books are about; asked until Stripe has said it once."""
        if self.wrong or self._is_account_known:
            return self.wrong is None
        try:
            keep_account(self._chores.write, self._payments.stripe.retrieve_account()["id"])
        except WrongAccount as wrong:
            _log.error("payments stand still: %s", wrong)
            self.wrong = wrong
            return False
        except PaymentError as error:
            # A restricted key may not be told whose it is.
            _log.warning("the account at Stripe is not known: %s", error)
            return True
        self._is_account_known = True
        return True

    def _see(self) -> None:
        self._frozen.look()
        count = self._payments.worker.count
        self.state = State(count("waiting"), count("failed"), self._chores.last(RECONCILIATION))

    def _look_daily(self) -> None:
        now_ns = self._chores.clock_ns()
        if self._begin(RECONCILIATION, self._day(now_ns)):
            self._payments.look_for_disputes()
            self.reconcile()
            purge(self._chores.write, now_ns - self._schedule.days_kept * _DAY_NS)
        if self._schedule.payouts != "off":
            day = self._day(now_ns)
            if self._schedule.payouts == "weekly":
                day -= timedelta(days=day.weekday())
            if self._begin(_PAYOUTS, day):
                paid = self._payments.payouts.run_schedule(day.isoformat())
                self._chores.done(_PAYOUTS, {"day": day.isoformat(), "paid": paid})

    def _begin(self, name: str, day: date) -> bool:
        """Return whether a day's chore has not been done and is ours to do now."""
        if self._day(self._chores.last(name).at_ns) >= day or self._chores.is_resting(name):
            return False
        return self._chores.take(name, _AGAIN_S)

    def _day(self, at_ns: int) -> date:
        """The day that daily things of this moment belong to: it begins at the schedule's hour."""
        return (datetime.fromtimestamp(at_ns / 1e9, UTC) - timedelta(hours=self._schedule.hour)).date()


def age_s(done: Done) -> float | None:
    """How long ago a chore was done, in seconds; None where it never was."""
    return max(0.0, time.time() - done.at_ns / 1e9) if done.at_ns else None


def _as_note(report: Report) -> dict[str, Any]:
    """A report for people and programs; amounts as decimal strings, and not all of very many."""

    def shown(pairs: tuple[Unmatched, ...]) -> list[dict[str, str]]:
        return [
            {
                "subject": pair.subject,
                "stripe": format_usd(pair.stripe_nano),
                "books": format_usd(pair.books_nano),
            }
            for pair in pairs[:_SHOWN_MAX]
        ]

    return {
        "compared": report.compared,
        "unmatched": shown(report.unmatched),
        # Whoever is told of what does not match looks at this, too.
        "unmatched_count": len(report.unmatched) + len(report.foreign),
        "foreign": list(report.foreign[:_SHOWN_MAX]),
        "waiting": shown(report.waiting),
        "waiting_count": len(report.waiting),
        "difference": format_usd(report.difference_nano),
        "difference_nano": report.difference_nano,
    }

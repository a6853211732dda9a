"""Run the thread of payments: the inbox every few seconds, reconciliation with Stripe and payouts daily.

One of several gateways does this at a time. It may be interrupted anywhere: everything resumes from stored rows.
"""

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from sqlalchemy import CursorResult, Delete, delete, select

from accounting.money import format_usd
from accounting.payments.chores import Chores, Done
from accounting.payments.errors import PaymentError, StripeUnavailable, WrongAccount
from accounting.payments.frozen import FrozenUsers
from accounting.payments.ledger import OpenSession
from accounting.payments.mode import keep_account
from accounting.payments.payments import Payments
from accounting.payments.reconciliation import Report, Unmatched
from accounting.payments.status_report import RECONCILIATION
from accounting.payments.tables import stripe_call_table, stripe_event_table

_log = logging.getLogger(__name__)

PayoutSchedule: TypeAlias = Literal["off", "daily", "weekly"]

_TICK, _PAYOUTS = "tick", "payouts"
_TURN_S = 120.0
# Seconds until a failed job is tried again.
_AGAIN_S = 600.0
_SHOWN_MAX = 100
_DAY_NS = 24 * 3600 * 10**9
_NEVER = Done(0, MappingProxyType({}))
DAYS_KEPT_MIN = 90
_AT_ONCE = 500
_event, _call = stripe_event_table.c, stripe_call_table.c


@dataclass(frozen=True, slots=True)
class Schedule:
    """The interval of payments in seconds, and the hour of the day (UTC) from which daily jobs are due."""

    tick_s: float = 5.0
    hour: int = 3
    payouts: PayoutSchedule = "off"
    days_kept: int = DAYS_KEPT_MIN


@dataclass(frozen=True, slots=True)
class State:
    """The state of payments at the last round: waiting and failed messages, and the last reconciliation."""

    waiting: int = 0
    failed: int = 0
    reconciliation: Done = _NEVER

    @property
    def inbox(self) -> dict[str, int]:
        return {"waiting": self.waiting, "failed": self.failed}


class Keeper:
    """Own the thread. Other threads may read `state`."""

    def __init__(self, payments: Payments, chores: Chores, frozen: FrozenUsers, schedule: Schedule) -> None:
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
        """Set if the key belongs to another account than this ledger. No request may then go to Stripe."""

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Stop, and return whether the thread ended in time. Interrupted work resumes at the next start."""
        self._is_over.set()
        self._news.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def wake(self) -> None:
        """Start a round now rather than at the next tick, because there is news."""
        self._news.set()

    def reconcile(self) -> Mapping[str, Any]:
        """Compare Stripe with the ledger now. Return the result as other gateways see it too.

        Raises:
            StripeUnavailable: Stripe does not answer, or another gateway is comparing at this moment.
        """
        with self._reconciling:
            if not self._chores.take(RECONCILIATION, _AGAIN_S):
                raise StripeUnavailable("another gateway is comparing Stripe with the ledger; try again later")
            found = _as_note(self._payments.reconciliation.run())
            self._chores.done(RECONCILIATION, found)
        return found

    def _run(self) -> None:
        while not self._is_over.is_set():
            self._news.clear()
            try:
                self.look()
            except Exception:  # noqa: BLE001  the thread's edge: an error in one round does not stop the next
                _log.exception("periodic check of payments failed")
            # A stop sets the flag before it wakes this thread, so a stop after the check below is not lost.
            if not self._is_over.is_set():
                self._news.wait(self._schedule.tick_s)

    def look(self) -> None:
        """Run one round: do what is due if it is this gateway's turn, and update `state`.

        Raises what Stripe or the ledger raises. `state` is updated all the same.
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
        """Return whether the key belongs to the ledger's account. Ask Stripe until it has answered once."""
        if self.wrong or self._is_account_known:
            return self.wrong is None
        try:
            keep_account(self._chores.write, self._payments.stripe.retrieve_account()["id"])
        except WrongAccount as wrong:
            _log.error("payments are stopped: %s", wrong)
            self.wrong = wrong
            return False
        except PaymentError as error:
            # A restricted key may lack permission to read its own account.
            _log.warning("cannot read the account at Stripe: %s", error)
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
        """Return whether a day's job has not been done and this process may do it now."""
        if self._day(self._chores.last(name).at_ns) >= day or self._chores.is_resting(name):
            return False
        return self._chores.take(name, _AGAIN_S)

    def _day(self, at_ns: int) -> date:
        """Return the day to which this moment's daily jobs belong. A day begins at the schedule's hour."""
        return (datetime.fromtimestamp(at_ns / 1e9, UTC) - timedelta(hours=self._schedule.hour)).date()


def age_s(done: Done) -> float | None:
    """Return how long ago a job was done, in seconds; None if it never was."""
    return max(0.0, time.time() - done.at_ns / 1e9) if done.at_ns else None


def _as_note(report: Report) -> dict[str, Any]:
    """Return a report for admins and programs: amounts as decimal strings, long lists shortened."""

    def shown(pairs: tuple[Unmatched, ...]) -> list[dict[str, str]]:
        return [
            {
                "subject": pair.subject,
                "stripe": format_usd(pair.stripe_nano),
                "ledger": format_usd(pair.ledger_nano),
            }
            for pair in pairs[:_SHOWN_MAX]
        ]

    return {
        "compared": report.compared,
        "unmatched": shown(report.unmatched),
        # Alerts about unmatched subjects use this count, so it includes foreign ones.
        "unmatched_count": len(report.unmatched) + len(report.foreign),
        "foreign": list(report.foreign[:_SHOWN_MAX]),
        "waiting": shown(report.waiting),
        "waiting_count": len(report.waiting),
        "difference": format_usd(report.difference_nano),
        "difference_nano": report.difference_nano,
    }


def purge(write: OpenSession, before_ns: int) -> int:
    """Delete what ended before that time and return the number of rows. Waiting and failed rows stay.

    Money needs neither messages nor calls: booked events keep their key in the ledger forever, and the signature of
    such an old message has expired.
    """
    return _purge_events(write, before_ns) + _purge_calls(write, before_ns)


def _purge_events(write: OpenSession, before_ns: int) -> int:
    old = select(_event.id).where(_event.status.in_(("done", "ignored")), _event.received_ns < before_ns)
    return _delete(write, delete(stripe_event_table).where(_event.id.in_(old.limit(_AT_ONCE))))


def _purge_calls(write: OpenSession, before_ns: int) -> int:
    old = select(_call.key).where(_call.status != "sent", _call.created_ns < before_ns)
    return _delete(write, delete(stripe_call_table).where(_call.key.in_(old.limit(_AT_ONCE))))


def _delete(write: OpenSession, some: Delete) -> int:
    """Delete in small transactions, so that the ledger's writer never waits long."""
    deleted = 0
    while True:
        with write() as session, session.begin():
            result = session.execute(some)
            assert isinstance(result, CursorResult)
            count = result.rowcount
        deleted += count
        if count < _AT_ONCE:
            return deleted

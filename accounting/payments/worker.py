"""Handle the inbox: one event at a time, each by its handler, with retries."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from sqlalchemy import func, select

from accounting.errors import LedgerError
from accounting.payments.context import PaymentsContext
from accounting.payments.errors import PaymentInvalid, PaymentMismatch, PaymentNotFound, StripeRefused
from accounting.payments.ledger import OpenSession
from accounting.payments.tables import StripeEvent, stripe_event_table

_log = logging.getLogger(__name__)
_event = stripe_event_table.c

TRIES_MAX = 20
_FIRST_PAUSE_S = 1.0
_PAUSE_MAX_S = 3_600.0
_CLAIMED_S = 300.0

Handler: TypeAlias = Callable[[str, str], None]
"""Takes the account of an event ("" for our own) and the id of its object."""


def retry(write: OpenSession, event_id: str, now_ns: int) -> None:
    """Let a message that was given up be handled again, with all its attempts.

    Raises PaymentNotFound, or PaymentInvalid if the message was not given up.
    """
    with write() as session, session.begin():
        row = session.get(StripeEvent, event_id, with_for_update=True)
        if row is None:
            raise PaymentNotFound(f"webhook {event_id} not found")
        if row.status != "failed":
            raise PaymentInvalid("id", f"webhook {event_id} is {row.status}: only failed webhooks can be retried")
        row.status, row.tries, row.due_ns = "waiting", 0, now_ns


@dataclass(frozen=True, slots=True)
class Worker:
    """Handle events.

    The handler with the longest matching prefix of the kind gets each one; others are ignored.
    """

    context: PaymentsContext
    handlers: Mapping[str, Handler]

    def run(self, limit: int = 100) -> int:
        """Handle due events and return their number."""
        for number in range(limit):
            event = self._claim()
            if event is None:
                return number
            self._work(event)
        return limit

    def count(self, status: str) -> int:
        with self.context.read() as session:
            query = select(func.count()).select_from(stripe_event_table).where(_event.status == status)
            return session.scalar(query) or 0

    def _claim(self) -> StripeEvent | None:
        """Claim the event that is due longest, so that no other process handles it meanwhile."""
        now_ns = self.context.clock_ns()
        due = (
            select(StripeEvent)
            .where(_event.status == "waiting", _event.due_ns <= now_ns)
            .order_by(_event.due_ns, _event.received_ns, _event.id)
            .limit(1)
            .with_for_update(skip_locked=True)
        )
        with self.context.write() as session, session.begin():
            event = session.scalar(due)
            if event is not None:
                event.due_ns = now_ns + int(_CLAIMED_S * 1e9)
                event.tries += 1
                session.flush()
                session.expunge(event)
        return event

    def _work(self, event: StripeEvent) -> None:
        handler = self._handler(event.kind)
        if handler is None:
            self._end(event, "ignored", "")
            return
        try:
            handler(event.account, event.object_id)
        except (PaymentMismatch, PaymentNotFound, StripeRefused) as error:
            _log.error("webhook %s (%s) could not be processed: %s", event.id, event.kind, error)
            self._end(event, "failed", str(error))
        except LedgerError as error:
            self._later(event, str(error))
        except Exception as error:  # noqa: BLE001  the worker's edge: one failure does not stop other events
            _log.exception("webhook %s (%s): its handler failed", event.id, event.kind)
            self._later(event, type(error).__name__)
        else:
            self.context.calls.failpoint("event_handled")
            self._end(event, "done", "")

    def _handler(self, kind: str) -> Handler | None:
        fitting = [beginning for beginning in self.handlers if kind.startswith(beginning)]
        return self.handlers[max(fitting, key=len)] if fitting else None

    def _later(self, event: StripeEvent, reason: str) -> None:
        if event.tries >= TRIES_MAX:
            _log.error("webhook %s (%s) failed %d times: %s", event.id, event.kind, event.tries, reason)
            self._end(event, "failed", reason)
            return
        pause_s = min(_FIRST_PAUSE_S * 2 ** (event.tries - 1), _PAUSE_MAX_S)
        with self.context.write() as session, session.begin():
            row = session.get_one(StripeEvent, event.id)
            row.due_ns, row.reason = self.context.clock_ns() + int(pause_s * 1e9), reason[:300]

    def _end(self, event: StripeEvent, status: str, reason: str) -> None:
        with self.context.write() as session, session.begin():
            row = session.get_one(StripeEvent, event.id)
            row.status, row.reason = status, reason[:300]

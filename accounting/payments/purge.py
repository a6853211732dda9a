"""Delete what payments no longer need: messages handled and calls answered long ago.

Neither is needed for correct money. Booked events keep their key in the ledger forever, and the signature of such
an old message has expired.
"""

from sqlalchemy import CursorResult, Delete, delete, select

from accounting.payments.ledger import OpenSession
from accounting.payments.tables import stripe_call_table, stripe_event_table

DAYS_KEPT_MIN = 90
_AT_ONCE = 500
_event, _call = stripe_event_table.c, stripe_call_table.c


def purge(write: OpenSession, before_ns: int) -> int:
    """Delete what ended before that time and return the number of rows. Waiting and failed rows stay."""
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

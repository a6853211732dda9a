"""What payments no longer need to remember: messages worked off and calls answered long ago.

Neither is needed to keep money right: what was booked has its key in the books for ever, and a message that old is
refused by its signature's time.
"""

from sqlalchemy import CursorResult, Delete, delete, select

from accounting.payments.ledger import OpenSession
from accounting.payments.tables import stripe_call_table, stripe_event_table

DAYS_KEPT_MIN = 90
_AT_ONCE = 500
_event, _call = stripe_event_table.c, stripe_call_table.c


def purge(write: OpenSession, before_ns: int) -> int:
    """Delete what ended before then and return how many rows that were; what waits or failed stays."""
    return _purge_events(write, before_ns) + _purge_calls(write, before_ns)


def _purge_events(write: OpenSession, before_ns: int) -> int:
    old = select(_event.id).where(_event.status.in_(("done", "ignored")), _event.received_ns < before_ns)
    return _delete(write, delete(stripe_event_table).where(_event.id.in_(old.limit(_AT_ONCE))))


def _purge_calls(write: OpenSession, before_ns: int) -> int:
    old = select(_call.key).where(_call.status != "sent", _call.created_ns < before_ns)
    return _delete(write, delete(stripe_call_table).where(_call.key.in_(old.limit(_AT_ONCE))))


def _delete(write: OpenSession, some: Delete) -> int:
    """Some at a time, each for itself: the books' writer waits for no long deletion."""
    deleted = 0
    while True:
        with write() as session, session.begin():
            result = session.execute(some)
            assert isinstance(result, CursorResult)
            count = result.rowcount
        deleted += count
        if count < _AT_ONCE:
            return deleted

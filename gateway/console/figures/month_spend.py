"""What each key was charged in the month that runs, kept and carried on by what the books have had since."""

import threading
import time
from collections.abc import Callable, Collection, Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from accounting.tables import usage_table
from gateway.limits.windows import window

_NS_PER_S = 10**9
# So many keys are remembered, and so many events are read to carry their sums on; beyond it they begin anew.
KEYS_MAX = 10_000
EVENTS_MAX = 50_000


class MonthSpend:
    """Nano-USD by key, by UTC months. Any thread may ask.

    Usage is only ever added to the books, each with the number of its event, and events come in the order of their
    numbers. So a sum as of an event needs only what came after it.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._begin_ns = 0
        self._as_of = 0
        self._by_key: dict[str, int] = {}

    def of(self, session: Session, key_ids: Sequence[str]) -> dict[str, int]:
        """What each of these was charged. The session sees one moment, of the ledger's database."""
        used = usage_table.c
        last = session.execute(select(func.max(used.event_seq))).scalar_one() or 0
        begin_ns = window("month", self._clock())[0] * _NS_PER_S
        with self._lock:
            self._carry_on(session, begin_ns, last)
            new = [key_id for key_id in key_ids if key_id not in self._by_key]
            found = dict.fromkeys(new, 0) | (self._whole(session, new) if new else {})
            # What an earlier moment than the sums' has is shown, and not carried on from.
            if last >= self._as_of:
                self._by_key |= found
            return {key_id: found.get(key_id, self._by_key.get(key_id, 0)) for key_id in key_ids}

    def _carry_on(self, session: Session, begin_ns: int, last: int) -> None:
        is_far = last - self._as_of > EVENTS_MAX or len(self._by_key) > KEYS_MAX
        if begin_ns != self._begin_ns or is_far:
            self._begin_ns, self._as_of, self._by_key = begin_ns, last, {}
        # Another thread may have seen a later moment than this session does.
        if last <= self._as_of:
            return
        used = usage_table.c
        since = (used.event_seq > self._as_of, used.event_seq <= last, used.started_ns >= begin_ns)
        query = select(used.key_id, func.sum(used.charge_nano)).where(*since).group_by(used.key_id)
        # All are read before the first is added: a look that fails half way must not add some of them twice.
        for key_id, nano in session.execute(query).all():
            if key_id in self._by_key:
                self._by_key[key_id] += int(nano)
        self._as_of = last

    def _whole(self, session: Session, key_ids: Collection[str]) -> dict[str, int]:
        used = usage_table.c
        query = select(used.key_id, func.sum(used.charge_nano)).where(
            used.key_id.in_(key_ids), used.started_ns >= self._begin_ns, used.event_seq <= self._as_of
        )
        return {key_id: int(nano) for key_id, nano in session.execute(query.group_by(used.key_id))}

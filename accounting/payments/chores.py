"""Run the periodic jobs of payments: one of several gateways does each at a time, and all know the result."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.exc import IntegrityError

from accounting.payments.ledger import OpenSession
from accounting.payments.tables import PaymentJob

_NS = 10**9


@dataclass(frozen=True, slots=True)
class Done:
    """When a job was last done, in nanoseconds since 1970 (0 for never), and its result."""

    at_ns: int
    note: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Chores:
    """Share jobs among gateways.

    `holder` is this process. If `is_alone`, no other can run, so others' claims are void.
    """

    read: OpenSession
    write: OpenSession
    holder: str
    is_alone: bool = False
    clock_ns: Callable[[], int] = time.time_ns

    def take(self, name: str, lasts_s: float) -> bool:
        """Claim a job for `lasts_s`. Return True if this process holds it, for at least half of that time."""
        now_ns = self.clock_ns()
        lasts_ns = int(lasts_s * _NS)
        try:
            with self.write() as session, session.begin():
                chore = session.get(PaymentJob, name, with_for_update=True)
                if chore is None:
                    chore = PaymentJob(name=name)
                    session.add(chore)
                is_taken = chore.claimed_until_ns > now_ns and chore.holder not in ("", self.holder)
                if is_taken and not self.is_alone:
                    return False
                if chore.holder != self.holder or chore.claimed_until_ns < now_ns + lasts_ns // 2:
                    chore.holder, chore.claimed_until_ns = self.holder, now_ns + lasts_ns
        except IntegrityError:
            return False  # Another process took it at the same moment.
        return True

    def is_resting(self, name: str) -> bool:
        """Return whether a process has taken a job and its time is not over."""
        with self.read() as session:
            chore = session.get(PaymentJob, name)
        return chore is not None and chore.claimed_until_ns > self.clock_ns()

    def done(self, name: str, note: Mapping[str, Any]) -> None:
        """Store the result of a job, and release it for others."""
        with self.write() as session, session.begin():
            chore = session.get(PaymentJob, name, with_for_update=True) or PaymentJob(name=name)
            chore.holder, chore.claimed_until_ns, chore.done_ns = "", 0, self.clock_ns()
            chore.details = json.dumps(note)
            session.add(chore)

    def last(self, name: str) -> Done:
        with self.read() as session:
            chore = session.get(PaymentJob, name)
        return Done(chore.done_ns, json.loads(chore.details)) if chore else Done(0, {})

"""What payments do now and then: of several gateways one at a time does it, and all know what came of it."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.exc import IntegrityError

from accounting.payments.ledger import OpenSession
from accounting.payments.tables import Chore

_NS = 10**9


@dataclass(frozen=True, slots=True)
class Done:
    """When a chore was done last, in nanoseconds since 1970 (0 for never), and what it said."""

    at_ns: int
    note: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Chores:
    """`holder` is this process; `is_alone` where no other one can be: what another one holds died with it."""

    read: OpenSession
    write: OpenSession
    holder: str
    is_alone: bool = False
    clock_ns: Callable[[], int] = time.time_ns

    def take(self, name: str, lasts_s: float) -> bool:
        """Return whether a chore is ours for so long, or for half of that at least where we hold it already."""
        now_ns = self.clock_ns()
        lasts_ns = int(lasts_s * _NS)
        try:
            with self.write() as session, session.begin():
                chore = session.get(Chore, name, with_for_update=True)
                if chore is None:
                    chore = Chore(name=name)
                    session.add(chore)
                is_taken = chore.until_ns > now_ns and chore.holder not in ("", self.holder)
                if is_taken and not self.is_alone:
                    return False
                if chore.holder != self.holder or chore.until_ns < now_ns + lasts_ns // 2:
                    chore.holder, chore.until_ns = self.holder, now_ns + lasts_ns
        except IntegrityError:
            return False  # Another one took it first, at the same moment.
        return True

    def is_resting(self, name: str) -> bool:
        """Return whether somebody has taken a chore and its time is not over."""
        with self.read() as session:
            chore = session.get(Chore, name)
        return chore is not None and chore.until_ns > self.clock_ns()

    def done(self, name: str, note: Mapping[str, Any]) -> None:
        """Write down what a chore came to, and let others have it."""
        with self.write() as session, session.begin():
            chore = session.get(Chore, name, with_for_update=True) or Chore(name=name)
            chore.holder, chore.until_ns, chore.done_ns = "", 0, self.clock_ns()
            chore.note = json.dumps(note)
            session.add(chore)

    def last(self, name: str) -> Done:
        with self.read() as session:
            chore = session.get(Chore, name)
        return Done(chore.done_ns, json.loads(chore.note)) if chore else Done(0, {})

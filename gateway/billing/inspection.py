"""Inspects the ledger's rules; while one is broken, nothing is spent."""

import asyncio
import math
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import structlog
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from accounting.errors import DatabaseFailing, LedgerBroken
from accounting.ledger import health
from accounting.ledger.health import RULES, BrokenRule
from accounting.ledger.scope import Witness
from accounting.tables import event_table
from gateway.billing.batch_settlement import Read
from runtime.database import allow_s

log = structlog.get_logger(__name__)

EVERY_S = 3600.0
# The interval while a rule is broken, so that a repair shows soon without a request.
BROKEN_EVERY_S = 60.0
# The fast rules, which take milliseconds. Spending continues at most this long after one of them broke.
GLANCE_EVERY_S = 5.0
GLANCE_TIMEOUT_S = 10.0
CONDITION_S = 10.0
# The timeout of each rule of a full inspection: a big database is slow, and no request waits for it.
INSPECTION_TIMEOUT_S = 1800
# For a caller that asks for every rule: the answer's maximum age, and how long to wait for a new one.
FRESH_S = 60.0
PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class Condition:
    """Whether the database answers, and which rules of the ledger are broken; `seen_s` is monotonic."""

    is_reachable: bool
    broken: tuple[str, ...]
    seen_s: float


class Inspection:
    """Checks every rule, and keeps the results.

    One event loop owns it; `read` and `witness` are called in threads.
    """

    def __init__(self, read: Read, witness: Callable[[], Witness]) -> None:
        self._read = read
        self._witness = witness
        self._condition = Condition(True, (), -math.inf)
        self._found: tuple[BrokenRule, ...] = ()
        self._essential: BrokenRule | None = None
        self._clean_seq = 0
        self._inspected_s: float | None = None
        self._made_s = time.monotonic()
        self._look: asyncio.Task[list[BrokenRule]] | None = None
        # Set after the first quick check; None if `begin` was not called.
        self._first_look: asyncio.Event | None = None
        # The time and the result of the last quick check that found money in danger.
        self._alarmed_s = -math.inf
        self._alarm = asyncio.Event()

    def begin(self) -> asyncio.Task[None]:
        """Check periodically, in a task that the caller owns. Nothing is spent before the first quick check."""
        self._first_look = asyncio.Event()
        return asyncio.create_task(self.keep(), name="ledger inspection")

    async def looked(self) -> None:
        """Wait for the first quick check after a start. Raises DatabaseFailing if it takes too long."""
        if self._first_look is None or self._first_look.is_set():
            return
        try:
            async with asyncio.timeout(GLANCE_TIMEOUT_S):
                await self._first_look.wait()
        except TimeoutError:
            raise DatabaseFailing("the ledger has not been checked yet; try again") from None

    def check(self) -> None:
        """Raises LedgerBroken while a rule is broken that protects money."""
        if self._essential is not None:
            raise LedgerBroken(self._essential.rule, self._essential.meaning)

    async def keep(self) -> None:
        """Run the quick check every few seconds.

        Inspect fully at the start and every hour, in the background, because a big ledger is slow. Runs until
        cancelled.
        """
        async with asyncio.TaskGroup() as both:
            both.create_task(self._keep_glancing(), name="ledger glance")
            both.create_task(self._keep_inspecting(), name="ledger deep inspection")

    async def _keep_glancing(self) -> None:
        while True:
            with _outliving("glance"):
                self._beware(await self.glance())
                if self._first_look is not None:
                    self._first_look.set()
            await asyncio.sleep(GLANCE_EVERY_S)

    def _beware(self, glanced: list[BrokenRule]) -> None:
        """Stop spending if the quick check found a problem; only a full inspection can clear it."""
        essential = next((finding for finding in glanced if finding.is_essential), None)
        if essential is None:
            return
        self._alarmed_s = time.monotonic()
        if self._essential is None:
            log.critical("ledger rule broken: spending is stopped", rule=essential.rule, where=essential.where)
            self._essential = essential
            self._alarm.set()

    async def _keep_inspecting(self) -> None:
        while True:
            self._alarm.clear()
            with _outliving("inspection"):
                await self.inspect(since_seq=self._clean_seq)
            with suppress(TimeoutError):
                async with asyncio.timeout(BROKEN_EVERY_S if self._essential else EVERY_S):
                    await self._alarm.wait()

    async def inspect(self, *, since_seq: int = 0) -> list[BrokenRule]:
        """Check every rule: on all accounts, and on events after `since_seq`. Raises DatabaseFailing."""

        def look(session: Session) -> tuple[int, list[BrokenRule]]:
            allow_s(session, INSPECTION_TIMEOUT_S)
            last_seq = session.execute(select(func.coalesce(func.max(event_table.c.seq), 0))).scalar_one()
            return last_seq, health.findings(session, time.time_ns(), since_seq=since_seq, witness=self._witness())

        began_s = time.monotonic()
        last_seq, found = await asyncio.to_thread(self._read, look)
        self._note(found, began_s)
        if all(finding.is_accepted for finding in found):
            # Booked entries never change, so the next inspection continues from here.
            self._clean_seq = max(self._clean_seq, last_seq)
        return found

    async def latest(self) -> tuple[tuple[BrokenRule, ...], float]:
        """The result of the last full inspection, and its age in seconds.

        If it is over a minute old, a new one begins, one at a time. The caller waits for it up to PATIENCE_S, then
        gets the previous result. Raises DatabaseFailing, also if there is no previous result.
        """
        if self._inspected_s is None or time.monotonic() - self._inspected_s > FRESH_S:
            if self._look is None or self._look.done():
                self._look = asyncio.create_task(self.inspect(), name="ledger inspection on request")
            await asyncio.wait((self._look,), timeout=PATIENCE_S)
            if self._look.done():
                self._look.result()
        if self._inspected_s is None:
            raise DatabaseFailing("the ledger is being checked; try again")
        return self._found, time.monotonic() - self._inspected_s

    async def stop(self) -> None:
        """End a running full inspection."""
        if self._look is not None:
            self._look.cancel()
            await asyncio.gather(self._look, return_exceptions=True)

    async def glance(self) -> list[BrokenRule]:
        """Check the rules that take milliseconds. Raises DatabaseFailing."""

        def look(session: Session) -> list[BrokenRule]:
            return health.findings(session, time.time_ns(), deep=False, witness=self._witness())

        return await asyncio.to_thread(self._read, look)

    async def condition(self) -> Condition:
        """Return the ledger's state, cached for a moment, and the last inspection's result."""
        if time.monotonic() - self._condition.seen_s > CONDITION_S:
            try:
                broken = [each for each in (*await self.glance(), *self._found) if not each.is_accepted]
                rules = tuple(dict.fromkeys(finding.rule for finding in broken))
                self._condition = Condition(True, rules, time.monotonic())
            except DatabaseFailing:
                self._condition = Condition(False, (), time.monotonic())
        return self._condition

    def by_rule(self) -> dict[tuple[str, ...], float]:
        """Return every rule for the metrics, in the metric's unit: 1 if it was broken at the last inspection.

        It is empty before the first inspection.
        """
        if self._inspected_s is None:
            return {}
        broken = {finding.rule for finding in self._found if not finding.is_accepted}
        return {(rule,): float(rule in broken) for rule in RULES}

    def age_s(self) -> dict[tuple[str, ...], float]:
        """Return the age of the last check for the metrics; before the first one, the time since the start."""
        since_s = self._made_s if self._inspected_s is None else self._inspected_s
        return {(): time.monotonic() - since_s}

    def _note(self, broken_rules: list[BrokenRule], began_s: float) -> None:
        broken = [finding for finding in broken_rules if not finding.is_accepted]
        for finding in broken:
            log.error("ledger rule broken", rule=finding.rule, where=finding.where)
        if self._found and not broken:
            log.warning("all ledger rules hold again")
        self._found = tuple(broken_rules)
        self._inspected_s = time.monotonic()
        essential = next((finding for finding in broken if finding.is_essential), None)
        if essential is not None or began_s >= self._alarmed_s:
            self._essential = essential
        if self._first_look is not None:
            self._first_look.set()


@contextmanager
def _outliving(what: str) -> Generator[None]:
    """The tasks' edge: they survive any error of one check."""
    try:
        yield
    except DatabaseFailing as error:
        log.warning("ledger not checked", by=what, reason=str(error))
    except Exception:
        log.exception("ledger not checked", by=what)

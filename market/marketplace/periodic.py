"""The marketplace's periodic tasks: book what has become due, and let earnings mature."""

import asyncio
import time
from dataclasses import dataclass

import anyio
import anyio.to_thread
import structlog
from sqlalchemy.exc import SQLAlchemyError

from accounting.errors import LedgerError
from market.errors import MarketError
from market.marketplace.marketplace import Marketplace

log = structlog.get_logger(__name__)

_AT_ONCE_MAX = 100
# Maturity is counted in days, so looking once a minute is enough, unless there is no waiting period.
_EARNINGS_EVERY_S = 60.0


@dataclass(slots=True)
class PeriodicTasks:
    """Runs every `tick_s` seconds; the starter of `run` owns the task."""

    marketplace: Marketplace
    tick_s: float
    _matured_s: float = float("-inf")

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.tick_s)
            try:
                await anyio.to_thread.run_sync(self.look, limiter=self.marketplace.threads)
            except (LedgerError, SQLAlchemyError) as error:
                log.warning("marketplace checks delayed", reason=type(error).__name__)
            except Exception:
                # The task's edge: it survives any error of one round.
                log.exception("marketplace checks failed")

    def look(self) -> None:
        """Do all that is due now. Raises LedgerError, SQLAlchemyError: the next round starts over."""
        self._decide()
        for digest in self.marketplace.settlements.due(_AT_ONCE_MAX):
            try:
                self.marketplace.settlements.submit(digest, ())
            except LedgerError as error:
                log.warning("allocation not settled yet", allocation=digest, reason=str(error))
            except MarketError as error:
                log.warning("allocation cannot be settled", allocation=digest, reason=str(error))
                self.marketplace.settlements.give_up(digest)
        if time.monotonic() >= self._matured_s + self._earnings_every_s:
            self._matured_s = time.monotonic()
            self.marketplace.earnings.look()

    def _decide(self) -> None:
        """Decide disputes that one side did not answer in time."""
        for dispute_id in self.marketplace.disputes.due(_AT_ONCE_MAX):
            try:
                self.marketplace.disputes.decide(dispute_id)
            except (LedgerError, MarketError, SQLAlchemyError) as error:
                log.warning("dispute not decided yet", dispute=dispute_id, reason=str(error))
                self.marketplace.disputes.put_off(dispute_id)

    @property
    def _earnings_every_s(self) -> float:
        terms = self.marketplace.context.terms
        return _EARNINGS_EVERY_S if terms.maturity_days_new and terms.maturity_days else 0.0

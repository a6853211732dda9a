"""Book what audits cost, from the buyer's process into the ledger: each once, even if either of them crashes."""

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import quote

import msgspec
import structlog

from accounting.errors import LedgerError, LedgerUnavailable
from accounting.ledger.postings import Posted, Posting
from accounting.rules.audits import audit
from market.audits.audit_target import BOOKED_AT_ONCE, Cost, Costs
from runtime.errors import ServiceError
from runtime.workers.supervisor import WorkerUnavailable

log = structlog.get_logger(__name__)

EVERY_S = 15.0
PROVIDER = "market"
_REFUSED_MAX = 1000
"""At most this many refusals are logged, each once."""

AskBuyer = Callable[[str, str], Awaitable[bytes]]
"""Ask the buyer's process: a method, a target. Raises OSError, EOFError, TimeoutError, WorkerUnavailable."""
Book = Callable[[Posting], Awaitable[Posted]]


class AuditCostReporter:
    """Book what the buyer reports as not booked, then confirm it. One event loop owns it."""

    def __init__(self, ask: AskBuyer, book: Book, every_s: float = EVERY_S) -> None:
        self._ask = ask
        self._book = book
        self._every_s = every_s
        self._refused: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="audit-costs")

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def book_new(self) -> int:
        """Book what there is; return how many audits that was.

        A cost that the ledger refuses does not delay others.

        Raises:
            OSError, EOFError, TimeoutError, ValueError, WorkerUnavailable: the buyer does not answer.
            LedgerUnavailable, ServiceError: the ledger cannot be written now.
        """
        count, after = 0, ""
        while True:
            costs = msgspec.json.decode(await self._ask("GET", f"/audits?after={quote(after)}"), type=Costs).audits
            booked = [cost.id for cost in costs if await self._is_booked(cost)]
            if booked:
                await self._ask("POST", f"/audits/booked?ids={','.join(map(quote, booked))}")
            count += len(booked)
            if len(costs) < BOOKED_AT_ONCE:
                return count
            after = costs[-1].id

    async def _is_booked(self, cost: Cost) -> bool:
        """Return whether the ledger has it now; a refusal is logged once."""
        try:
            await self._book(audit(cost.id, PROVIDER, cost.amount_nano, cost.seller))
        except LedgerUnavailable:
            raise
        except LedgerError as error:
            if cost.id not in self._refused and len(self._refused) < _REFUSED_MAX:
                self._refused.add(cost.id)
                log.error("auditing.cost_refused", audit=cost.id, amount_nano=cost.amount_nano, reason=str(error))
            return False
        return True

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.book_new()
            except (OSError, EOFError, TimeoutError, ValueError, WorkerUnavailable) as error:
                log.info("auditing.costs_unknown", reason=type(error).__name__)
            except (LedgerError, ServiceError) as error:
                log.warning("auditing.costs_not_posted", reason=str(error))

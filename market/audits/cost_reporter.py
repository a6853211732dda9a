"""Book what audits cost, from the buyer's process into the ledger: each once, even if either of them crashes."""

from urllib.parse import quote

import msgspec
import structlog

from accounting.errors import LedgerError, LedgerUnavailable
from accounting.rules.audits import audit
from market.audits.audit_target import BOOKED_AT_ONCE, Cost, Costs
from market.network.buyer_costs import PROVIDER, AskBuyer, Book

log = structlog.get_logger(__name__)

_REFUSED_MAX = 1000
"""At most this many refusals are logged, each once."""


class AuditCostReporter:
    """Book what the buyer reports as not booked, then confirm it. One event loop owns it."""

    def __init__(self, ask: AskBuyer, book: Book) -> None:
        self._ask = ask
        self._book = book
        self._refused: set[str] = set()

    async def book_all(self) -> int:
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

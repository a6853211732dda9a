"""Records every request: its journal entry with a usage row, its log entries, its metrics."""

import asyncio
from collections.abc import Callable, Sequence

import structlog
from msgspec import structs

from accounting.ledger.postings import Outcome
from accounting.metering.tokenizers import Tokenizers
from accounting.rules.held import Hold
from gateway.billing.finished_request import Ended
from gateway.billing.ledger_service import LedgerService
from gateway.billing.recount import WAITING_MAX, Recounter
from gateway.billing.request_log import RequestEntry, RequestLog
from gateway.billing.settlement_worker import Booked, SettlementWorker
from gateway.billing.spool import Spool
from gateway.metrics.metrics import Metrics

log = structlog.get_logger(__name__)

_STOP_S = 10.0


class Bookkeeper:
    """Moves ended requests off the event loop: the settlement thread books them and informs the logs.

    `witnesses` also get every batch, as the request log does: the access log, telemetry. They run on the
    settlement thread.
    """

    def __init__(
        self,
        ledger: LedgerService,
        request_log: RequestLog,
        metrics: Metrics,
        spool: Spool,
        witnesses: Sequence[Callable[[list[Booked]], None]] = (),
        recounter: Recounter | None = None,
    ) -> None:
        self._leases = ledger.leases
        self._request_log = request_log
        self._metrics = metrics
        self._witnesses = (self._write_down, *witnesses)
        self.recounter = recounter or Recounter(Tokenizers({}), metrics)
        self._spool = spool
        self._settlement_worker = SettlementWorker(ledger.settler, spool, metrics, self._witness, self.recounter)

    def start(self) -> None:
        self._settlement_worker.start()

    def settle(self, ended: Ended) -> int:
        """Book a request and inform the logs. Only `stop` waits for this; never raises.

        Returns what counts against its payer's budgets, in nano-USD. If the answer is still to be counted again,
        that sum is corrected later.
        """
        usage = ended.settlement.usage
        self._metrics.requests.labels(usage.lane, usage.outcome).inc()
        settlement, recount = ended.settlement, ended.recount
        if recount and self.waiting > WAITING_MAX:
            ended, recount = structs.replace(ended, recount=None), None
        if settlement.hold and settlement.hold.lease and not (recount and recount.price):
            # Release the unused part for the next request now, not when the request is booked.
            self._leases.end(settlement.hold, settlement.charge_nano)
        self._settlement_worker.add(ended)
        return settlement.spent_nano

    def abandon(self, hold: Hold | None, lane: str, outcome: Outcome) -> None:
        """Release the hold of a request that the ledger cannot book."""
        self._metrics.requests.labels(lane, outcome).inc()
        if hold:
            self._leases.end(hold, 0)

    @property
    def waiting(self) -> int:
        """Return the number of ended requests that are not booked yet."""
        return self._settlement_worker.waiting

    @property
    def is_behind(self) -> bool:
        """Return whether ended requests are not booked yet, including those on disk."""
        # In this order, a request that moves from one to the other is seen in one of them.
        return bool(self._settlement_worker.waiting) or not self._spool.is_empty

    async def caught_up(self) -> None:
        """Return when all requests that have ended are booked, or on disk because the ledger is unavailable."""
        loop, caught_up = asyncio.get_running_loop(), asyncio.Event()
        self._settlement_worker.tell_when_caught_up(lambda: loop.call_soon_threadsafe(caught_up.set))
        await caught_up.wait()

    async def stop(self) -> None:
        """Book or write to disk all ended requests, and all that end later."""
        await asyncio.to_thread(self._settlement_worker.stop, _STOP_S)

    def _witness(self, batch: list[Booked]) -> None:
        for witness in self._witnesses:
            try:
                witness(batch)
            except Exception:
                # The thread's edge: errors of logs must not delay the ledger.
                log.exception("requests not saved", requests=len(batch))

    def _write_down(self, batch: list[Booked]) -> None:
        dropped = self._request_log.add_all([_entry(ended, event_seq) for ended, event_seq in batch])
        self._metrics.request_log_drops.inc(dropped)


def _entry(ended: Ended, event_seq: int | None) -> RequestEntry:
    usage = ended.settlement.usage
    return RequestEntry(
        usage.request_id,
        usage.started_ns,
        usage.key_id,
        usage.model,
        ended.kind,
        usage.lane,
        ended.backend,
        "",
        ended.decision,
        ended.status,
        usage.outcome,
        ended.problem,
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.ttft_ms,
        usage.duration_ms,
        ended.settlement.charge_nano if event_seq is not None else 0,
        event_seq,
        usage.served_model,
        ended.decided_ms,
    )

"""The begin and the end of a batch: validate its lines, open its files, and write its final state."""

import asyncio
import time
from pathlib import Path

import orjson
import structlog

from gateway.batches.batch import Batch
from gateway.batches.batches import Batches
from gateway.batches.file import StoredFile
from gateway.batches.items import Items
from gateway.batches.job import BatchJob, Callers, Stop
from gateway.batches.output import Output
from gateway.batches.validation import Findings, Rules, examine
from gateway.identity.caller import Caller
from gateway.identity.keys import Keys
from gateway.settings import Settings
from runtime.errors import ServiceError

log = structlog.get_logger(__name__)

# Seconds for which a revoked key may still have requests asked, as on connections.
_KEY_S = 5.0
# Running requests of a stopped batch may end within this.
_PATIENCE_S = 60.0
_DAY_NS = 86_400 * 10**9
_REVOKED = Stop(
    "failed",
    "batch_cancelled",
    "The batch's key is no longer valid.",
    {"code": "key_not_valid", "line": None, "message": "The batch's key is no longer valid.", "param": None},
)
CANCELLED = Stop("cancelled", "batch_cancelled", "The batch was cancelled.")
_NO_INPUT = {
    "code": "input_file_missing",
    "line": None,
    "message": "The input file no longer exists.",
    "param": None,
}


class BatchLifecycle:
    """Acts for the runner, which owns the jobs."""

    def __init__(self, keys: Keys, batches: Batches, settings: Settings) -> None:
        self._keys = keys
        self._store = batches.store
        self._files = batches.files
        self._bounds = settings.batches
        self._body_bytes_max = settings.server.body_bytes_max

    async def open(self, job: BatchJob) -> None:
        """Validate the lines if that was not done, and restore the state from before the last stop."""
        if job.batch.status == "validating" and job.stop is None:
            await self._validate(job)
        if job.batch.has_ended:
            return
        batch = job.batch
        output = await asyncio.to_thread(Output, self._files.file_store, batch)
        items = Items(self._input(batch), self._body_bytes_max, output.done)
        job.open(output, items)

    async def look_up_key(self, job: BatchJob) -> Stop | None:
        """Look up the batch's key, so that its changes take effect. Return a stop if it is no longer valid."""
        now_s = time.monotonic()
        if job.callers and now_s < job.callers_until_s:
            return None
        caller = await asyncio.to_thread(self._keys.find_by_id, job.batch.key_id)
        if caller is None:
            return _REVOKED
        job.callers, job.callers_until_s = Callers.of(caller), now_s + _KEY_S
        return None

    async def end(self, job: BatchJob) -> None:
        """Write the final state once running requests have ended."""
        if job.asking:
            await asyncio.wait(job.asking, timeout=_PATIENCE_S)
            job.is_left = True
            for task in job.asking:
                task.cancel()
            await asyncio.gather(*job.asking, return_exceptions=True)
        await asyncio.to_thread(self._end, job)
        log.info("batch ended", batch=job.batch.id, status=job.batch.status, counts=job.noted)

    def prune(self) -> None:
        self._files.prune()
        self._store.prune(time.time_ns() - self._bounds.days_max * _DAY_NS)

    async def _validate(self, job: BatchJob) -> None:
        batch = job.batch
        stop = await self.look_up_key(job)
        if stop or job.callers is None:
            await self._fail(job, stop.errors if stop else None)
            return
        try:
            await asyncio.to_thread(self._files.find, batch.owner, batch.input_file_id)
            findings = await asyncio.to_thread(self._examine, job, job.callers.all_lanes)
        except (ServiceError, OSError):
            await self._fail(job, orjson.dumps([_NO_INPUT]).decode())
            return
        if job.stop:
            return
        if findings.errors:
            await self._fail(job, orjson.dumps(findings.errors).decode(), total=findings.total)
            return
        values = {"total": findings.total, "model": findings.model}
        if await asyncio.to_thread(self._store.move, batch.id, "validating", "in_progress", **values):
            job.batch = await asyncio.to_thread(self._store.find, batch.owner, batch.id)
        else:
            job.stop = CANCELLED

    def _examine(self, job: BatchJob, caller: Caller) -> Findings:
        rules = Rules(
            job.batch.endpoint,
            self._bounds.lines_max,
            self._body_bytes_max,
            lambda model: caller.models is None or model in caller.models,
        )
        return examine(self._input(job.batch), rules, lambda: job.stop is None)

    async def _fail(self, job: BatchJob, errors: str | None, total: int = 0) -> None:
        values = {"errors": errors, "total": total}
        if await asyncio.to_thread(self._store.move, job.batch.id, "validating", "failed", **values):
            job.batch = await asyncio.to_thread(self._store.find, job.batch.owner, job.batch.id)
        job.phase = "ending"

    def _end(self, job: BatchJob) -> None:
        stop, batch, output = job.stop, job.batch, job.output
        assert stop
        if batch.status == "in_progress" and not self._store.move(batch.id, "in_progress", "finalizing"):
            # It was cancelled at this moment.
            stop = job.stop = CANCELLED
        if batch.total:
            job.write_rest(self._input(batch), self._body_bytes_max)
        output.finish()
        completed, failed = job.noted = job.counts
        self._store.end(
            batch, stop.end, self._outputs(batch, output), completed=completed, failed=failed, errors=stop.errors
        )
        output.tidy()
        job.close()
        job.batch = self._store.find(batch.owner, batch.id)

    def _outputs(self, batch: Batch, output: Output) -> list[StoredFile]:
        files = ((batch.output_id, output.answers, "output"), (batch.error_id, output.errors, "error"))
        return [
            self._files.describe(
                batch.owner,
                file_id,
                f"{batch.id}_{what}.jsonl",
                "batch_output",
                file.size_bytes,
                batch.output_lifetime_s,
            )
            for file_id, file, what in files
            if file.size_bytes
        ]

    def _input(self, batch: Batch) -> Path:
        return self._files.file_store.path(batch.owner, batch.input_file_id)

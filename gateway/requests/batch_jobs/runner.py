"""The one task that processes batches: finds them, opens them, starts their requests in turn, ends them."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable

import structlog

from gateway.batches.batch import Batch
from gateway.batches.batches import Batches
from gateway.batches.job import BatchJob, Stop
from gateway.requests.batch_jobs.batch_service import POLL_S, BatchService
from gateway.requests.batch_jobs.lifecycle import CANCELLED, BatchLifecycle
from runtime.database import no_commits

log = structlog.get_logger(__name__)

# Each has open files, and the numbers of its lines in memory.
JOBS_MAX = 32
# Interval at which the runner looks for batches that other processes created or cancelled.
LOOK_EVERY_S = 2.0
PRUNE_EVERY_S = 600.0
STOP_S = 5.0

TROUBLE_S = 60.0
_EXPIRED = Stop("expired", "batch_expired", "The batch's completion window ended before this request was sent.")


class Runner:
    """Owns every job and its tasks. A failed job is resumed from what is on disk.

    `commit` is that of `runtime.database.Commits`: unfinished batches are read after a commit only.
    """

    def __init__(
        self,
        batches: Batches,
        life: BatchLifecycle,
        service: BatchService,
        concurrency: int,
        commit: Callable[[], int | None] = no_commits,
    ) -> None:
        self._batches = batches
        self._commit = commit
        self._read_at: int | None = None
        self._unfinished: list[Batch] = []
        self._store = batches.store
        self._place = batches.files.folder_id
        self._concurrency = concurrency
        self._life = life
        self._service = service
        self._jobs: dict[str, BatchJob] = {}
        # When failed batches may be resumed, so that a lasting failure is not retried at once.
        self._resting_until_s: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None
        self._look_s = self._prune_s = 0.0

    @property
    def open_batches(self) -> int:
        """Return the number of batches being processed here."""
        return len(self._jobs)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="batches")

    async def stop(self) -> None:
        """Stop. Running requests have a moment to end; others are asked again at the next start."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        tasks = {task for job in self._jobs.values() for task in (*job.asking, job.task) if task}
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for job in self._jobs.values():
            await asyncio.to_thread(job.close)

    async def _run(self) -> None:
        while True:
            self._batches.changed.clear()
            try:
                await self._work()
            except Exception:
                # The task's edge: the database may be unavailable for a while.
                log.exception("batches delayed by an error")
                await asyncio.sleep(LOOK_EVERY_S)
            try:
                async with asyncio.timeout(POLL_S if self._jobs else LOOK_EVERY_S):
                    await self._batches.changed.wait()
            except TimeoutError:
                pass

    async def _work(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._look_s or self._batches.is_news:
            self._batches.is_news = False
            self._look_s = now_s + LOOK_EVERY_S
            await self._look()
        if now_s >= self._prune_s:
            self._prune_s = now_s + PRUNE_EVERY_S
            await asyncio.to_thread(self._life.prune)
        for job in list(self._jobs.values()):
            await self._watch(job)
        while await self._start_one():
            pass

    async def _look(self) -> None:
        """Find batches to open or cancel, and store each one's progress."""
        commit = self._commit()
        if commit is None or commit != self._read_at:
            self._unfinished = _in_turn(await asyncio.to_thread(self._store.unfinished, self._place))
            self._read_at = commit
        unfinished = self._unfinished
        self._end_quarantines(unfinished)
        for batch in unfinished:
            job = self._jobs.get(batch.id)
            if job is None and batch.id not in self._resting_until_s and self._may_open(batch):
                job = self._jobs[batch.id] = BatchJob(batch)
                self._begin(job, self._life.open(job))
            if job and batch.status == "cancelling" and job.stop is None:
                job.batch, job.stop = batch, CANCELLED
        for job in self._jobs.values():
            if job.phase == "running" and job.counts != job.noted:
                job.noted = job.counts
                await asyncio.to_thread(self._store.note_counts, job.batch.id, *job.noted)

    def _may_open(self, batch: Batch) -> bool:
        """Return whether a batch may be opened; one to be cancelled ends soon and needs only a slot."""
        mine = sum(job.batch.owner == batch.owner for job in self._jobs.values())
        return may_open(0 if batch.status == "cancelling" else mine, len(self._jobs))

    def _end_quarantines(self, unfinished: Iterable[Batch]) -> None:
        now_s, resting = time.monotonic(), self._resting_until_s
        there = (batch.id for batch in unfinished)
        self._resting_until_s = {name: resting[name] for name in there if resting.get(name, 0.0) > now_s}

    async def _watch(self, job: BatchJob) -> None:
        """End a job if it is complete, stopped or expired."""
        if job.phase != "running":
            return
        if job.stop is None and time.time_ns() >= job.batch.expires_ns:
            job.stop = _EXPIRED
        job.stop = job.stop or await self._life.look_up_key(job)
        if job.stop is None and job.is_spent:
            job.stop = Stop("completed")
        if job.stop:
            job.phase = "ending"
            self._begin(job, self._life.end(job))

    def _begin(self, job: BatchJob, work: Coroutine[None, None, None]) -> None:
        job.task = asyncio.create_task(work, name=f"{job.batch.id} {job.phase}")
        job.task.add_done_callback(lambda task: self._done(job, task))

    def _done(self, job: BatchJob, task: "asyncio.Task[None]") -> None:
        """Handle a job that was opened or has ended; after a failure it is resumed from what is on disk."""
        error = None if task.cancelled() else task.exception()
        if error:
            log.error("batch delayed by an error", batch=job.batch.id, exc_info=error)
            self._resting_until_s[job.batch.id] = time.monotonic() + TROUBLE_S
        if error or job.batch.has_ended:
            self._jobs.pop(job.batch.id, None)
            job.close()
        self._batches.changed.set()

    async def _start_one(self) -> bool:
        """Start one request of the job whose turn it is, or of the next that has room."""
        by_owner = Counter({job.batch.owner: 0 for job in self._jobs.values()})
        for job in self._jobs.values():
            by_owner[job.batch.owner] += len(job.asking)
        if by_owner.total() >= self._concurrency:
            return False
        now_s = time.monotonic()
        running = [job for job in self._jobs.values() if job.phase == "running"]
        waiting = [j for j in running if j.has_room and max(j.look_again_s, j.held_until_s) <= now_s]
        for job in sorted(waiting, key=lambda job: (by_owner[job.batch.owner], len(job.asking))):
            try:
                if await self._service.start(job, self._concurrency):
                    return True
            except Exception:
                # A job's edge: one failing job must not delay the others.
                log.exception("batch delayed by an error", batch=job.batch.id)
                job.held_until_s = time.monotonic() + TROUBLE_S
        return False


def may_open(mine: int, all_open: int) -> bool:
    """Return whether an owner with `mine` open batches may open another: fewer each, the fewer slots are left.

    Open batches stay open until they end, so no owner may take all slots. An owner alone can have six of 32, and
    every owner gets one before the last slot is taken.
    """
    return (mine + 1) * all_open < JOBS_MAX


def _in_turn(batches: Iterable[Batch]) -> list[Batch]:
    """Order batches: those to be cancelled, then each owner's first, each owner's second, and so on."""
    before: Counter[str] = Counter()
    ranked = []
    for batch in batches:
        ranked.append((batch.status != "cancelling", before[batch.owner], batch.created_ns, batch))
        before[batch.owner] += 1
    return [batch for *_, batch in sorted(ranked, key=lambda one: one[:3])]

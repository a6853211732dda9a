"""The one task that works batches off: finds them, opens them, starts their requests in turn, ends them."""

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine, Iterable

import structlog

from gateway.batches.batch import Batch
from gateway.batches.desk import POLL_S, Desk
from gateway.batches.job import Job, Stop
from gateway.batches.life import CANCELLED, Life
from gateway.services import Services

log = structlog.get_logger(__name__)

JOBS_MAX = 32
# How often the database is asked for what others have begun or cancelled.
LOOK_EVERY_S = 2.0
PRUNE_EVERY_S = 600.0
STOP_S = 5.0

_TROUBLE_S = 60.0
_EXPIRED = Stop("expired", "batch_expired", "The batch's completion window ended before this was asked.")


class Runner:
    """Owns every job and its tasks. Whatever fails in one is tried again from what is on disk."""

    def __init__(self, services: Services) -> None:
        self._batches = batches = services.batches
        self._store = batches.store
        self._place = batches.files.place
        self._concurrency = services.settings.batches.concurrency
        self._life = Life(services)
        self._desk = Desk(services, batches.changed.set)
        self._jobs: dict[str, Job] = {}
        self._task: asyncio.Task[None] | None = None
        self._look_s = self._prune_s = 0.0

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="batches")

    async def stop(self) -> None:
        """Requests under way have a moment to end; others are asked again at the next start."""
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
                # The task's edge: the database may be away, and comes back.
                log.exception("batches held up")
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
        """What others have begun or cancelled, what is left of earlier days; and say how far each has come."""
        for batch in _in_turn(await asyncio.to_thread(self._store.unfinished, self._place)):
            job = self._jobs.get(batch.id)
            if job is None and len(self._jobs) < JOBS_MAX:
                job = self._jobs[batch.id] = Job(batch)
                self._begin(job, self._life.open(job))
            if job and batch.status == "cancelling" and job.stop is None:
                job.batch, job.stop = batch, CANCELLED
        for job in self._jobs.values():
            if job.phase == "running" and job.counts != job.noted:
                job.noted = job.counts
                await asyncio.to_thread(self._store.note_counts, job.batch.id, *job.noted)

    async def _watch(self, job: Job) -> None:
        """Whether a job has come to its end."""
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

    def _begin(self, job: Job, work: Coroutine[None, None, None]) -> None:
        job.task = asyncio.create_task(work, name=f"{job.batch.id} {job.phase}")
        job.task.add_done_callback(lambda task: self._done(job, task))

    def _done(self, job: Job, task: "asyncio.Task[None]") -> None:
        """A job was opened, or has ended; one that failed in it is taken up again from what is on disk."""
        error = None if task.cancelled() else task.exception()
        if error:
            log.error("batch held up", batch=job.batch.id, exc_info=error)
        if error or job.batch.has_ended:
            self._jobs.pop(job.batch.id, None)
            job.close()
        self._batches.changed.set()

    async def _start_one(self) -> bool:
        """One request of the job whose turn it is, or of the next that has room."""
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
                if await self._desk.start(job, self._concurrency):
                    return True
            except Exception:
                # A job's edge: what is wrong with one keeps no other waiting.
                log.exception("batch held up", batch=job.batch.id)
                job.held_until_s = time.monotonic() + _TROUBLE_S
        return False


def _in_turn(batches: Iterable[Batch]) -> list[Batch]:
    """First what is to be cancelled, then each owner's first, each owner's second, and so on."""
    before: Counter[str] = Counter()
    ranked = []
    for batch in batches:
        ranked.append((batch.status != "cancelling", before[batch.owner], batch.created_ns, batch))
        before[batch.owner] += 1
    return [batch for *_, batch in sorted(ranked, key=lambda one: one[:3])]

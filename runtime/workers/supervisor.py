"""Supervise a worker process: start it, watch it, replace it without losing an answer."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from runtime.workers.health import Health
from runtime.workers.worker_process import Program, WorkerFailed, WorkerProcess, launch

log = structlog.get_logger(__name__)

HEALTHY_AFTER_S = 60.0
"""A worker that lived this long and then died starts no new count of failures."""


class WorkerUnavailable(Exception):
    """No worker can take a request now; `retry_after_s` says when one may."""

    def __init__(self, reason: str, retry_after_s: float) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class HealthPolicy:
    """When a worker is called ready, ill, worn out or hopeless."""

    start_s: float = 60.0
    health_interval_s: float = 5.0
    health_s: float = 10.0
    health_misses_max: int = 3
    requests_max: int = 20_000
    age_max_s: float = 12 * 3600.0
    rss_bytes_max: int = 1024 * 1024 * 1024
    """A worker of this size is replaced once another is ready; its answers may finish."""
    rss_bytes_kill: int = 3 * 1024 * 1024 * 1024
    """A worker of this size is stopped immediately, before the machine runs out of memory."""
    retire_s: float = 960.0
    """Time in which a replaced worker may finish its answers; longer than any answer may take."""
    eager_restarts_max: int = 3
    """After this number of consecutive failures a worker is started only when a request needs one."""
    backoff_max_s: float = 60.0

    def backoff_s(self, failures: int) -> float:
        """None after the first failure, then 1, 2, 4 ... seconds."""
        return 0.0 if failures <= 1 else min(2.0 ** (failures - 2), self.backoff_max_s)

    def worn_out(self, health: Health) -> str | None:
        """Return why this worker should be replaced; None if it should not."""
        if health.requests >= self.requests_max:
            return "requests"
        if health.age_s >= self.age_max_s:
            return "age"
        return "memory" if health.rss_bytes >= self.rss_bytes_max else None


@dataclass(frozen=True)
class Lease:
    """The right to send one request to `socket_path`. Its worker is not stopped while the lease is held."""

    socket_path: Path
    generation: int


class Worker:
    """One ready worker at any time, and at most one more that finishes its answers.

    `acquire` is all that a lane needs; it starts the worker when none runs. One task, `_keep`, owns the course of
    events; a second one per replaced worker waits for its last answer. `stop` ends them all.
    """

    def __init__(self, program: Program, health_policy: HealthPolicy | None = None) -> None:
        self._program = program
        self._health_policy = health_policy or HealthPolicy()
        self._current: WorkerProcess | None = None
        self._retiring: dict[asyncio.Task[None], WorkerProcess] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._stopped = False
        self._generation = 0
        self._resume_at: float | None = None
        self.trouble: str | None = None
        """Return why no started worker is ready; None while all is well or before the first start."""
        self._changed = asyncio.Condition()
        self._needed = asyncio.Event()

    @property
    def _spoken_name(self) -> str:
        return self._program.name.replace("_", " ")

    @property
    def ready(self) -> bool:
        return self._current is not None and self._current.alive

    @property
    def socket_path(self) -> Path | None:
        """Return the address of the current worker; for requests use `acquire`, which also holds it."""
        return self._current.socket_path if self._current and self._current.alive else None

    @property
    def generation(self) -> int:
        """Return the number of workers so far, the current one included; 0 while none is ready."""
        return self._current.generation if self._current and self._current.alive else 0

    @property
    def pids(self) -> list[int]:
        """The current worker first, then those that finish their answers."""
        workers = [self._current, *self._retiring.values()]
        return [worker.pid for worker in workers if worker is not None and worker.alive]

    def warm(self) -> None:
        """Start a worker if none runs. Returns immediately."""
        self._needed.set()
        if (self._keeper is None or self._keeper.done()) and not self._stopped:
            self._keeper = asyncio.create_task(self._keep(), name=f"{self._program.name}-keeper")

    async def start(self) -> None:
        """Return when a worker is ready; raises WorkerUnavailable."""
        await self._serving()

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Lease]:
        """Hold the current worker for one request; raises WorkerUnavailable."""
        worker = await self._serving()
        worker.take()
        try:
            yield Lease(worker.socket_path, worker.generation)
        finally:
            worker.give_back()

    async def report_unreachable(self, lease: Lease) -> None:
        """The lease's socket refused a connection, or dropped one before the first byte.

        Covers the time between a worker's death and its detection. If the worker does not answer here either, it
        is dropped, and `acquire` waits for another.
        """
        worker = self._current
        if worker is None or not worker.alive or worker.generation != lease.generation:
            return
        if await worker.health(self._health_policy.health_s) is None:
            worker.kill()

    async def stop(self) -> None:
        """End every worker, giving running answers the drain time; safe to call twice."""
        self._stopped = True
        workers = [worker for worker in (self._current, *self._retiring.values()) if worker is not None]
        tasks = [task for task in (self._keeper, *self._retiring) if task is not None]
        self._current, self._keeper = None, None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(worker.stop() for worker in workers))
        await self._announce()

    async def _serving(self) -> WorkerProcess:
        """The current worker, once there is one."""
        self.warm()
        try:
            async with asyncio.timeout(self._health_policy.start_s), self._changed:
                await self._changed.wait_for(lambda: self.ready or self._stopped or self._resume_at is not None)
        except TimeoutError:
            raise WorkerUnavailable(f"{self._program.name} is not ready yet", 1.0) from None
        if self._current is not None and self._current.alive:
            return self._current
        if self._stopped:
            raise WorkerUnavailable("the gateway is shutting down", self._health_policy.start_s)
        pause_s = max((self._resume_at or 0.0) - time.monotonic(), 1.0)
        raise WorkerUnavailable(f"{self._program.name} keeps failing", pause_s)

    async def _keep(self) -> None:
        """Launch, watch, and launch again: after a crash, or to replace a worker that is worn out."""
        failures = 0
        while True:
            try:
                self._generation += 1
                worker = await launch(self._program, self._generation, self._health_policy.start_s)
            except WorkerFailed as error:
                log.error("worker.start_failed", worker=self._program.name, reason=str(error))
                failures += 1
                self.trouble = f"the {self._spoken_name} does not start, see the log"
                await self._pause(failures)
                continue
            await self._install(worker)
            if await self._watch(worker):
                continue
            self.trouble = f"the {self._spoken_name} has ended and is started again, see the log"
            log.error(
                "worker.died",
                worker=self._program.name,
                generation=worker.generation,
                age_s=round(worker.age_s, 1),
            )
            await worker.stop()
            failures = 1 if worker.age_s >= HEALTHY_AFTER_S else failures + 1
            await self._pause(failures)

    async def _install(self, worker: WorkerProcess) -> None:
        """Make `worker` the current one, and let the one before it finish."""
        before, self._current = self._current, worker
        self.trouble = None
        log.info(
            "worker.ready",
            worker=self._program.name,
            generation=worker.generation,
            pid=worker.pid,
            cpu_s=worker.born.cpu_s,
        )
        if before is not None:
            task = asyncio.create_task(
                self._retire(before), name=f"{self._program.name}-{before.generation}-retires"
            )
            self._retiring[task] = before
            task.add_done_callback(self._retiring.pop)
        await self._announce()

    async def _watch(self, worker: WorkerProcess) -> bool:
        """Return True if the worker should be replaced, False if it is dead or no longer answers."""
        exited = asyncio.create_task(worker.exited())
        misses = 0
        try:
            while not exited.done():
                # One replacement at a time: a worker that still finishes its answers is memory, too.
                replaceable = not self._retiring
                await asyncio.wait({exited}, timeout=self._health_policy.health_interval_s)
                if exited.done():
                    return False
                health = await worker.health(self._health_policy.health_s)
                misses = 0 if health else misses + 1
                if (
                    misses >= self._health_policy.health_misses_max
                    or worker.rss_bytes >= self._health_policy.rss_bytes_kill
                ):
                    log.error(
                        "worker.given_up", worker=self._program.name, generation=worker.generation, misses=misses
                    )
                    worker.kill()
                    return False
                if replaceable and health and (reason := self._health_policy.worn_out(health)):
                    log.info(
                        "worker.worn_out", worker=self._program.name, generation=worker.generation, reason=reason
                    )
                    return True
            return False
        finally:
            exited.cancel()

    async def _retire(self, worker: WorkerProcess) -> None:
        deadline = time.monotonic() + self._health_policy.retire_s
        while not worker.idle.is_set() and worker.alive:
            if worker.rss_bytes >= self._health_policy.rss_bytes_kill:
                worker.kill()
            if time.monotonic() >= deadline or not worker.alive:
                log.warning(
                    "worker.retired_busy",
                    worker=self._program.name,
                    generation=worker.generation,
                    leases=worker.leases,
                )
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(self._health_policy.health_interval_s):
                    await worker.idle.wait()
        await worker.stop()

    async def _pause(self, failures: int) -> None:
        """Wait before the next attempt; meanwhile requests are refused with a retry time instead of waiting."""
        pause_s = self._health_policy.backoff_s(failures)
        if pause_s:
            self._resume_at = time.monotonic() + pause_s
            await self._announce()
            await asyncio.sleep(pause_s)
            self._resume_at = None
        if failures > self._health_policy.eager_restarts_max:
            self._needed.clear()
            await self._needed.wait()

    async def _announce(self) -> None:
        async with self._changed:
            self._changed.notify_all()

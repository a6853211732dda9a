"""Start a batch's next request if there is room for it, and handle its result."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from gateway.batches.job import BatchJob, Callers, Ready
from gateway.batches.lines import Item, route_of
from gateway.batches.placement import OWN, Verdict, choose
from gateway.batches.receipts import Receipts
from gateway.batches.reply import BatchReply, pause_s
from gateway.dialects.stored_responses.store import ResponseStore
from gateway.errors import to_api_error
from gateway.identity.caller import Caller
from gateway.lanes.base import Call
from gateway.limits.admission import Admission
from gateway.requests.batch_jobs.dispatch import send_request
from gateway.requests.serve import RequestPath
from gateway.routing.router import Router
from gateway.settings import Settings
from runtime.errors import BodyTooLarge, ServiceError

log = structlog.get_logger(__name__)

# Interval at which waiting requests check for room, in seconds.
POLL_S = 0.25
# Backends are discovered gradually: until then an unknown model may still appear.
GRACE_S = 30.0

_NO_DISK_S = 60.0
_DEFECT = 500
# The share of the gateway's concurrent requests that batches leave free.
_LEFT_FREE = 0.5


@dataclass(frozen=True, slots=True)
class BatchService:
    """Acts for the runner, which owns jobs and their tasks. `changed` is called when a request has ended."""

    requests: RequestPath
    router: Router
    admission: Admission
    responses: ResponseStore
    receipts: Receipts
    settings: Settings
    changed: Callable[[], None]
    began_s: float = field(default_factory=time.monotonic)

    async def start(self, job: BatchJob, abreast: int) -> bool:
        """Start the job's next request if it has one and there is room. Return whether it did."""
        await self._make_ready(job)
        ready, callers = job.ready, job.callers
        if ready is None or callers is None:
            return False
        verdict = self._verdict(job, ready, callers, abreast)
        if verdict == "wait":
            job.look_again_s = time.monotonic() + POLL_S
            return False
        job.ready = None
        caller = _caller_for(verdict, callers)
        task = asyncio.create_task(self._carry_out(job, ready, caller), name=f"{job.batch.id} {ready.item.line}")
        job.asking.add(task)
        task.add_done_callback(lambda done: self._ended(job, done))
        # Let it count at its backend before the next one checks for room there.
        await asyncio.sleep(0)
        return True

    async def _make_ready(self, job: BatchJob) -> None:
        """Read the next item. An item that cannot be read is answered with the reason."""
        while job.ready is None:
            if job.items.is_dry:
                await asyncio.to_thread(job.items.refill)
            item = job.items.peek(time.monotonic())
            if item is None or job.callers is None:
                return
            job.items.take(item)
            try:
                job.ready = await self._read(job, item, job.callers.all_lanes)
            except Exception as error:
                # The edge of a line: one bad line must not hold up the others.
                refused = to_api_error(error)
                if refused.status == _DEFECT:
                    log.error("batch request failed", batch=job.batch.id, line=item.line, exc_info=error)
                reply = BatchReply(refused.status, job.request_id(item), refused.body())
                if not await self._put_back(job, item, reply):
                    await self._write_down(job, item, reply)

    async def _read(self, job: BatchJob, item: Item, caller: Caller) -> Ready:
        route = route_of(job.batch.endpoint)
        question = route.read(item.body)
        if route.resolve:
            question = await route.resolve(self.responses, caller, question)
        return Ready(item, question)

    def _verdict(self, job: BatchJob, ready: Ready, callers: Callers, abreast: int) -> Verdict:
        router = self.router
        if self.admission.in_flight >= _LEFT_FREE * self.settings.server.requests_max:
            return "wait"
        question = ready.question
        call = Call(job.request_id(ready.item), question.kind, question.request, question.raw, callers.own.user_id)
        try:
            own = router.explain(callers.own, call)
            paid = router.explain(callers.paid, call) if callers.paid else None
        except ServiceError:
            return "hopeless"  # serving it reports the same error to the caller
        verdict = choose(own, paid, job.pace(abreast), self.settings.batches)
        is_unknown = not own.rejections and not (paid and paid.rejections)
        if verdict == "hopeless" and is_unknown and time.monotonic() < self.began_s + GRACE_S:
            return "wait"
        return verdict

    async def _carry_out(self, job: BatchJob, ready: Ready, caller: Caller) -> None:
        began_s = time.monotonic()
        item, request_id = ready.item, job.request_id(ready.item)
        receipts = self.receipts
        receipts.expect(request_id)
        try:
            reply = await self._ask(job, ready, caller, request_id)
            if not caller.lanes <= OWN:
                await receipts.wait(request_id)
        finally:
            receipts.forget(request_id)
        if reply.is_good:
            job.learn(time.monotonic() - began_s)
        if not await self._put_back(job, item, reply):
            await self._write_down(job, item, reply)

    async def _ask(self, job: BatchJob, ready: Ready, caller: Caller, request_id: str) -> BatchReply:
        try:
            route = route_of(job.batch.endpoint)
            return await send_request(
                self.requests, caller, route, ready.question, request_id, lambda: job.is_left
            )
        except asyncio.CancelledError:
            # The request may have been charged for its received part, so another try gets another request id.
            with contextlib.suppress(OSError, BodyTooLarge):
                job.output.add_try(ready.item.line)
            raise

    async def _put_back(self, job: BatchJob, item: Item, reply: BatchReply) -> bool:
        """Return whether the request will be asked again later."""
        attempt = job.output.attempts[item.line]
        now_s = time.monotonic()
        if reply.is_limit and reply.retry_after_s is not None:
            # The limit holds for all requests of this key, so none is worth asking before.
            due_s = now_s + reply.retry_after_s
            job.hold(due_s)
        elif reply.is_passing and not reply.is_limit and attempt < self.settings.batches.retries_max:
            due_s = now_s + pause_s(reply, attempt) * random.uniform(1.0, 1.25)  # noqa: S311 - no secret
        else:
            return False
        try:
            await asyncio.to_thread(job.output.add_try, item.line)
        except (OSError, BodyTooLarge) as error:
            # The try is counted in memory: only after a restart would the next try reuse this request id.
            self._wait_for_disk(job, error)
            due_s = max(due_s, job.held_until_s)
        job.items.put_back(item, due_s)
        return True

    async def _write_down(self, job: BatchJob, item: Item, reply: BatchReply) -> None:
        try:
            await asyncio.to_thread(job.output.add, item.line, item.custom_id, reply)
        except (OSError, BodyTooLarge) as error:
            # The next try keeps the request id, so that its cost is booked once.
            self._wait_for_disk(job, error)
            job.items.put_back(item, job.held_until_s)

    def _wait_for_disk(self, job: BatchJob, error: Exception) -> None:
        log.error("no disk space for batch", batch=job.batch.id, reason=str(error))
        job.held_until_s = max(job.held_until_s, time.monotonic() + _NO_DISK_S)

    def _ended(self, job: BatchJob, task: "asyncio.Task[None]") -> None:
        job.asking.discard(task)
        job.look_again_s = 0.0
        if not task.cancelled() and (error := task.exception()):
            log.error("batch request lost until the next start", batch=job.batch.id, exc_info=error)
        self.changed()


def _caller_for(verdict: Verdict, callers: Callers) -> Caller:
    if verdict == "own":
        return callers.own
    return callers.paid if verdict == "paid" and callers.paid else callers.all_lanes

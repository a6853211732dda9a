"""Our own gateway's answer to one job: a task reads ahead a little and stops once the answer is not wanted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import structlog

from market.seller.carrier import JobRefused
from market.seller.gateway_request import GatewayRequest
from market.seller.own_gateway import GatewayAway, OwnGateway, UpstreamRefused

log = structlog.get_logger(__name__)

HEAD_S = 0.25
"""A gateway without room for preemptible requests says so at once; the buyer then gets an error instead of a stream."""
_AHEAD_MAX = 32

_Failure = GatewayAway | UpstreamRefused


class Upstream:
    """Events of one answer. `next` returns their data, None at the end, and raises errors."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[bytes | _Failure | None] = asyncio.Queue(_AHEAD_MAX)
        self._begun = asyncio.Event()
        self._refusal: _Failure | None = None
        self._next: asyncio.Task[bytes | _Failure | None] | None = None

    @classmethod
    @asynccontextmanager
    async def asking(cls, gateway: OwnGateway, order: GatewayRequest) -> AsyncIterator["Upstream"]:
        """Ask within the block; leaving it closes the connection, which stops the gateway's work."""
        upstream = cls()
        reading = asyncio.create_task(upstream._read(gateway, order), name="own gateway's answer")
        try:
            yield upstream
        finally:
            tasks = [task for task in (reading, upstream._next) if task]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def head(self) -> None:
        """Wait a moment, in case the gateway refuses.

        Raises:
            JobRefused: the gateway refused, and nothing was sent to the buyer yet.
        """
        try:
            async with asyncio.timeout(HEAD_S):
                await self._begun.wait()
        except TimeoutError:
            return
        if self._refusal is not None:
            raise refused_by(self._refusal)

    async def next(self, *until: "asyncio.Task[object]", patience_s: float) -> bytes | None:
        """Return the next event's data; None at the end of the answer.

        Raises:
            TimeoutError: nothing arrived in time, or one of `until` is done; no event is lost.
            GatewayAway, UpstreamRefused: the answer ended with this error.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._events.get())
        if not any(each.done() for each in until):
            waited: set[asyncio.Task[Any]] = {self._next, *until}
            await asyncio.wait(waited, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
        if any(each.done() for each in until) or not self._next.done():
            raise TimeoutError
        found, self._next = self._next.result(), None
        if isinstance(found, Exception):
            raise found
        return found

    async def _read(self, gateway: OwnGateway, order: GatewayRequest) -> None:
        try:
            async with gateway.answer(order.kind, order.body) as events:
                self._begun.set()
                async for data in events:
                    await self._events.put(data)
            await self._events.put(None)
        except (GatewayAway, UpstreamRefused) as error:
            await self._fail(error)
        except Exception as error:  # noqa: BLE001 - a task's edge: its reader would wait for half an hour
            log.error("own gateway does not answer", why=type(error).__name__)
            await self._fail(GatewayAway(type(error).__name__))

    async def _fail(self, failure: _Failure) -> None:
        self._refusal = failure
        self._begun.set()
        await self._events.put(failure)


def refused_by(failure: _Failure) -> JobRefused:
    """Return the error for the buyer: either the owner needs the machines, or something failed."""
    if isinstance(failure, UpstreamRefused):
        if failure.code == "preemptible_not_now":
            return JobRefused("not_idle", "The owner needs these machines now. Try again later.")
        if failure.code == "preempted":
            return JobRefused("preempted", "The owner needs these machines now. Try again later.")
        if failure.status == 400:
            return JobRefused("refused", "This seller's model rejected the request.")
    return JobRefused("failed", "This seller's model does not answer now. Try again later.")

"""Serve an answer from its first event to its final receipt, which is signed whatever happens in between."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import structlog

from market.errors import StatementInvalid
from market.protocol.channels.job import Cut
from market.protocol.channels.terms import ANSWER_S_MAX
from market.seller.carrier import Carrier, Gone
from market.seller.chunks import ChunkBroken, UpstreamError
from market.seller.delivery import WAIT_EVENT, Delivering
from market.seller.own_gateway import GatewayAway, UpstreamRefused
from market.seller.upstream import Upstream, refused_by
from runtime.sse import DONE

log = structlog.get_logger(__name__)

WAIT_S = 10.0
"""Send something this often while the model is silent, because tunnels close connections that are silent longer.
"""

_PREEMPTED = Cut("preempted", "The owner needs these machines, so the answer ends here.")
_STOPPED = Cut("preempted", "This seller has stopped selling, so the answer ends here.")
_BROKEN = Cut("failed", "The model's answer was interrupted, so it ends here.")
_LATE = Cut("failed", "The answer took longer than half an hour, so it ends here.")


@dataclass(frozen=True, slots=True)
class AnswerStream:
    """One answer in progress. Setting `stop` ends it at its next block."""

    upstream: Upstream
    delivering: Delivering
    carrier: Carrier
    stop: asyncio.Event
    wait_s: float = WAIT_S

    async def run(self) -> bool:
        """Serve the answer; return whether the buyer hung up before anything billable was delivered."""
        cut, is_gone, delivery = None, True, None
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                await self.delivering.begin(self.carrier)
                cut = await self._pass_on()
            is_gone = False
        except Gone:
            pass
        except TimeoutError:
            cut, is_gone = _LATE, False
        finally:
            # Sign for what was delivered, even if this task is being cancelled.
            delivery = await asyncio.shield(self.delivering.end(self.carrier, cut, is_gone=is_gone))
        return is_gone and not delivery.receipt.completion_tokens

    async def _pass_on(self) -> Cut | None:
        """Pass on events until the end; return why the answer was cut, if it was. Raises Gone."""
        async with _watching(self.carrier.gone()) as gone, _watching(self.stop.wait()) as stopped:
            while not stopped.done():
                try:
                    data = await self.upstream.next(gone, stopped, patience_s=self.wait_s)
                except TimeoutError:
                    if gone.done():
                        raise Gone from None
                    if not stopped.done():
                        await self.carrier.send(WAIT_EVENT)
                    continue
                except (GatewayAway, UpstreamRefused) as failure:
                    refused = refused_by(failure)
                    return Cut(refused.code, refused.message)
                if data == DONE:
                    return None
                if data is None:
                    return _BROKEN
                if cut := await self._send(data):
                    return cut
        return _STOPPED

    async def _send(self, data: bytes) -> Cut | None:
        try:
            await self.delivering.pass_on(data, self.carrier)
        except UpstreamError as error:
            return _PREEMPTED if error.code == "preempted" else _BROKEN
        except (ChunkBroken, StatementInvalid) as error:
            log.warning("the gateway's answer cannot be passed on", why=str(error))
            return _BROKEN
        return None


@asynccontextmanager
async def _watching(coroutine: Coroutine[Any, Any, object]) -> AsyncIterator["asyncio.Task[object]"]:
    task = asyncio.create_task(coroutine)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

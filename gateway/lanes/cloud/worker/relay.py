"""One request to its provider: sends it, limits every wait, and forwards the answer piece by piece."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from gateway.lanes.cloud.worker import adapters
from gateway.lanes.cloud.worker.answers import WorkerAnswer
from gateway.lanes.cloud.worker.errors import from_litellm
from gateway.lanes.cloud.worker.providers import CloudModel, Timeouts
from gateway.lanes.cloud.worker.requests import Request
from runtime.workers.errors import Refusal
from runtime.workers.exchange import Exchange

T = TypeVar("T")


@dataclass(frozen=True)
class Relay:
    """One request. Raises only Refusal, and CancelledError if the client disconnects."""

    request: Request
    model: CloudModel
    provider: str
    secrets: dict[str, str]
    """litellm's secret arguments for this model."""
    timeouts: Timeouts

    async def run(self, exchange: Exchange) -> None:
        """Ask the provider and send its answer. Raises Refusal if it refuses or is too slow."""
        asking = adapters.ask(self.request, self.model, self.secrets, self.timeouts)
        try:
            async with asyncio.timeout(self.timeouts.total_s):
                if self.request.stream:
                    await self._stream(exchange, asking)
                else:
                    await self._whole(exchange, asking)
        except TimeoutError:
            raise _too_slow("the whole answer", self.timeouts.total_s) from None

    async def _whole(self, exchange: Exchange, asking: Awaitable[Any]) -> None:
        answer = WorkerAnswer(self.request)
        body = answer.whole(await self._from_provider(asking))
        await exchange.answer(200, orjson.dumps(body))

    async def _stream(self, exchange: Exchange, asking: Awaitable[Any]) -> None:
        answer = WorkerAnswer(self.request)
        bounds = self.timeouts
        pieces, chunk = await self._from_provider(_begun(asking), "the first byte", bounds.first_byte_s)
        async with aclosing(pieces):
            while chunk is not None:
                if event := answer.piece(chunk):
                    await exchange.event(orjson.dumps(event))
                coming = anext(pieces, None)
                chunk = await self._from_provider(coming, "the next chunk", bounds.between_chunks_s)
        if self.request.wants_usage() and answer.usage:
            await exchange.event(orjson.dumps(answer.usage_piece(answer.usage)))
        await exchange.event(b"[DONE]")
        await exchange.end()

    async def _from_provider(self, waiting: Awaitable[T], what: str = "", wait_s: float | None = None) -> T:
        """litellm's answer within its timeout. Converts litellm's exceptions to refusals."""
        bound = asyncio.timeout(wait_s)
        try:
            async with bound:
                return await waiting
        except Refusal:
            raise
        except TimeoutError as error:
            if bound.expired():
                raise _too_slow(what, wait_s) from None
            raise self._refusal(error) from error
        except Exception as error:  # litellm's adapters may raise any exception
            raise self._refusal(error) from error

    def _refusal(self, error: Exception) -> Refusal:
        return from_litellm(error, self.provider, list(self.secrets.values()))


async def _begun(asking: Awaitable[Any]) -> tuple[AsyncGenerator[Any, None], Any]:
    """The pieces of a streamed answer, and the first of them."""
    pieces = adapters.pieces(await asking)
    return pieces, await anext(pieces, None)


def _too_slow(what: str, limit_s: float | None) -> Refusal:
    return Refusal(504, "provider_timeout", f"The provider did not send {what} within {limit_s:g} s.")

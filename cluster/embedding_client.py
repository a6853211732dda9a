"""The controller's client of an embedder: one connection that carries all requests for embeddings."""

import asyncio
import contextlib
import contextvars
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from cluster import wire
from cluster.embedding import Embeddings, EmbedRequest, check_answer
from cluster.errors import (
    GENERATION_ERRORS,
    ClusterBusy,
    EmbedderLost,
    FrameInvalid,
    GenerationError,
    LinkLost,
    PeerRejected,
)
from cluster.net.channel import Channel, open_channel
from cluster.trust.identity import Identity

log = structlog.get_logger(__name__)

ANSWER_TIMEOUT_S = 300.0

_LOST = "the machine that embeds was lost while answering"


@dataclass(frozen=True, slots=True)
class _Pending:
    request: EmbedRequest
    answered: asyncio.Future[Embeddings]
    began_ns: int


class EmbeddingClient:
    """`open` creates it. Every request ends with the connection; `lost` is called then."""

    def __init__(self, channel: Channel, lost: Callable[["EmbeddingClient"], None]) -> None:
        self._channel = channel
        self._channel.payload_bytes_max = wire.PAYLOAD_BYTES_MAX
        self._lost = lost
        self._requests: dict[str, _Pending] = {}
        # The task starts during some request but belongs to none: its log lines carry no request id.
        self._reading = asyncio.create_task(self._read(), name="embedding client", context=contextvars.Context())

    @classmethod
    async def open(
        cls, embedder: wire.Address, identity: Identity, lost: Callable[["EmbeddingClient"], None]
    ) -> "EmbeddingClient":
        """Connect to an embedder. Raise LinkError if it cannot be reached."""
        return cls(await open_channel(embedder, identity), lost)

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """Return the vectors.

        Raise GenerationError and its kinds; raise EmbedderLost if another embedder may answer. Raise ClusterBusy
        if no answer comes within ANSWER_TIMEOUT_S.
        """
        if self._reading.done():
            raise EmbedderLost(_LOST)
        answered: asyncio.Future[Embeddings] = asyncio.get_running_loop().create_future()
        self._requests[request.id] = _Pending(request, answered, time.monotonic_ns())
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await self._channel.send(wire.Embed(request))
                return await answered
        except LinkLost as error:
            raise EmbedderLost(f"the machine that embeds cannot be reached: {error}") from None
        except TimeoutError:
            raise ClusterBusy(f"the embedding model has not answered within {ANSWER_TIMEOUT_S:.0f} s") from None
        finally:
            del self._requests[request.id]
            if answered.cancel() or answered.cancelled():
                await self._cancel(request.id)
            else:
                answered.exception()  # Mark the exception as read.

    async def close(self) -> None:
        """Close without a farewell, since an embedder that stands still would never answer it."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._channel.writer.transport.abort()

    async def _cancel(self, request_id: str) -> None:
        if not self._reading.done():
            with contextlib.suppress(LinkLost):
                await self._channel.send(wire.Cancel(request_id))

    async def _read(self) -> None:
        try:
            while True:
                message, payload = await self._channel.receive()
                match message:
                    case wire.Embedded(request_id, dimensions, token_counts, compute_ns):
                        self._settle(request_id, Embeddings(payload, dimensions, token_counts, compute_ns))
                    case wire.Rejected(request_id, code, text, param):
                        self._settle(request_id, GENERATION_ERRORS.get(code, GenerationError)(text, param))
                    case _:
                        pass
        except (LinkLost, FrameInvalid, PeerRejected) as error:
            log.warning("embedder lost", reason=str(error))
        finally:
            for pending in self._requests.values():
                if not pending.answered.done():
                    pending.answered.set_exception(EmbedderLost(_LOST))
            self._lost(self)

    def _settle(self, request_id: str, outcome: Embeddings | GenerationError) -> None:
        """Complete a request. Raise FrameInvalid for an impossible answer."""
        pending = self._requests.get(request_id)
        if pending is None or pending.answered.done():
            return
        if isinstance(outcome, Embeddings):
            check_answer(pending.request, outcome, time.monotonic_ns() - pending.began_ns)
            pending.answered.set_result(outcome)
        else:
            pending.answered.set_exception(outcome)

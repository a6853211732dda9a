"""The client of a coordinator or an embedder: one connection that carries all requests of its callers."""

import asyncio
import contextlib
import contextvars
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Literal

import structlog

from cluster import wire
from cluster.embedding import Embeddings, EmbedRequest, check_answer
from cluster.errors import (
    GENERATION_ERRORS,
    ClusterBusy,
    ClusterUnavailable,
    FrameInvalid,
    GenerationError,
    LinkError,
    LinkLost,
    PeerRejected,
    ProcessLost,
)
from cluster.generation import Done, GenerateRequest, GenerationEvent
from cluster.net.channel import Channel, open_channel
from cluster.trust.identity import Identity

log = structlog.get_logger(__name__)

# A coordinator sends a sign of life for every request four times as often (request_table.KEEP_ALIVE_S),
# whatever the request waits for.
SILENCE_TIMEOUT_S = 60.0
# An embedder sends nothing before its answer.
EMBED_TIMEOUT_S = 300.0

_Answer = wire.Events | wire.Embedded | wire.Rejected


@dataclass(slots=True)
class _Request:
    """A request under way, and its unread answers with their payloads. None ends them: the connection is lost."""

    answers: asyncio.Queue[tuple[_Answer, bytes] | None] = field(default_factory=asyncio.Queue)
    is_finished: bool = False


class ModelClient:
    """Sends a deployment's requests to its coordinator or embedder, which refuses those for another one.

    `open` creates it; every request ends with the connection.
    """

    def __init__(
        self, address: wire.Address, channel: Channel, role: Literal["coordinator", "embedder"], deployment: str
    ) -> None:
        self.address = address
        self._deployment = deployment
        self._channel = channel
        self._role = role
        if role == "embedder":
            channel.payload_bytes_max = wire.PAYLOAD_BYTES_MAX
        self._requests: dict[str, _Request] = {}
        # The task starts during some request but belongs to none: its log lines carry no request id.
        self._reading = asyncio.create_task(self._read(), name=f"{role} client", context=contextvars.Context())

    @classmethod
    async def open(
        cls,
        address: wire.Address,
        identity: Identity,
        deployment: str,
        role: Literal["coordinator", "embedder"] = "coordinator",
    ) -> "ModelClient":
        """Connect to a process. Raise ClusterUnavailable if it cannot be reached."""
        try:
            return cls(address, await open_channel(address, identity), role, deployment)
        except LinkError as error:
            raise ClusterUnavailable(f"the cluster's {role} cannot be reached: {error}") from None

    @property
    def is_open(self) -> bool:
        return not self._reading.done()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerationEvent]:
        """Yield the events of one request up to its Done.

        Leaving the iterator early cancels it on the coordinator at once. Raise GenerationError and its kinds;
        raise ProcessLost if another coordinator may go on, and ClusterUnavailable if none was asked.
        """
        try:
            async with self._send_request(wire.Generate(request, self._deployment)) as sent:
                while not sent.is_finished:
                    try:
                        async with asyncio.timeout(SILENCE_TIMEOUT_S):
                            answer, _ = await self._next_answer(sent)
                    except TimeoutError:
                        raise ProcessLost(f"the cluster has been silent for {SILENCE_TIMEOUT_S:.0f} s") from None
                    if isinstance(answer, wire.Events):
                        for event in answer.events:
                            sent.is_finished = sent.is_finished or isinstance(event, Done)
                            yield event
        except LinkLost as error:
            raise ClusterUnavailable(f"the cluster's {self._role} cannot be reached: {error}") from None

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """Return the vectors.

        Raise GenerationError and its kinds; raise ProcessLost if another embedder may answer, and ClusterBusy if no
        answer comes within EMBED_TIMEOUT_S. An impossible answer ends the connection.
        """
        began_ns = time.monotonic_ns()
        try:
            async with (
                asyncio.timeout(EMBED_TIMEOUT_S),
                self._send_request(wire.Embed(request, self._deployment)) as sent,
            ):
                answer, vectors = await self._next_answer(sent)
                sent.is_finished = True
                if not isinstance(answer, wire.Embedded):
                    raise FrameInvalid("an embedder answered with text")
                done = Embeddings(vectors, answer.dimensions, answer.token_counts, answer.compute_ns)
                check_answer(request, done, time.monotonic_ns() - began_ns)
                return done
        except FrameInvalid as error:
            self._channel.writer.transport.abort()
            log.warning("embedder lost", reason=str(error))
            raise ProcessLost("the embedder sent an invalid answer") from None
        except LinkLost as error:
            raise ProcessLost(f"the cluster's {self._role} cannot be reached: {error}") from None
        except TimeoutError:
            raise ClusterBusy(f"the embedding model has not answered within {EMBED_TIMEOUT_S:.0f} s") from None

    async def close(self) -> None:
        """Close without a farewell, since a process that stands still would never answer it."""
        # Abort before the first await: a cancellation there would otherwise leave the socket open.
        self._channel.writer.transport.abort()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def _send_request(self, message: wire.Generate | wire.Embed) -> AsyncGenerator[_Request]:
        """Send a request, and cancel it there if its caller leaves before its end. Raise LinkLost."""
        sent, request_id = _Request(), message.request.id
        self._requests[request_id] = sent
        try:
            if not self.is_open:
                raise LinkLost("the connection is lost")
            await self._channel.send(message)
            yield sent
        finally:
            self._requests.pop(request_id, None)
            if not sent.is_finished and self.is_open:
                with contextlib.suppress(LinkLost):
                    await self._channel.send(wire.Cancel(request_id))

    async def _next_answer(self, sent: _Request) -> tuple[wire.Events | wire.Embedded, bytes]:
        """Return the next answer and its payload. Raise ProcessLost, or the GenerationError of a refusal."""
        received = await sent.answers.get()
        if received is None:
            raise ProcessLost(f"the cluster's {self._role} was lost while answering")
        answer, payload = received
        if isinstance(answer, wire.Rejected):
            sent.is_finished = True
            raise GENERATION_ERRORS.get(answer.code, GenerationError)(answer.message, answer.param)
        return answer, payload

    async def _read(self) -> None:
        try:
            while True:
                message, payload = await self._channel.receive()
                if isinstance(message, _Answer) and (sent := self._requests.get(message.request_id)):
                    sent.answers.put_nowait((message, payload))
        except (LinkLost, FrameInvalid, PeerRejected) as error:
            log.warning("connection lost", process=self._role, reason=str(error))
        finally:
            for sent in self._requests.values():
                sent.answers.put_nowait(None)

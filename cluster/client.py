"""The client of a coordinator: one connection that carries all requests of its callers."""

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncGenerator

import structlog

from cluster import wire
from cluster.errors import (
    GENERATION_ERRORS,
    ClusterUnavailable,
    CoordinatorLost,
    FrameInvalid,
    GenerationError,
    LinkError,
    LinkLost,
    PeerRejected,
)
from cluster.generation import Done, GenerateRequest, GenerationEvent
from cluster.net.channel import Channel, open_channel
from cluster.trust.identity import Identity

log = structlog.get_logger(__name__)

# A coordinator sends a sign of life for every request four times as often (request_table.KEEP_ALIVE_S),
# whatever the request waits for.
SILENCE_TIMEOUT_S = 60.0

_Answer = wire.Events | wire.Rejected
_LOST = "the machine that coordinates the cluster was lost while answering"


class CoordinatorClient:
    """Generates on one coordinator. `open` creates it; every request ends with the connection."""

    def __init__(self, coordinator: wire.Address, channel: Channel) -> None:
        self.coordinator = coordinator
        self._channel = channel
        self._requests: dict[str, asyncio.Queue[_Answer | None]] = {}
        # The task starts during some request but belongs to none: its log lines carry no request id.
        self._reading = asyncio.create_task(self._read(), name="coordinator client", context=contextvars.Context())

    @classmethod
    async def open(cls, coordinator: wire.Address, identity: Identity) -> "CoordinatorClient":
        """Connect to a coordinator. Raise ClusterUnavailable if it cannot be reached."""
        try:
            return cls(coordinator, await open_channel(coordinator, identity))
        except LinkError as error:
            raise ClusterUnavailable(f"the cluster's coordinator cannot be reached: {error}") from None

    @property
    def is_open(self) -> bool:
        return not self._reading.done()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerationEvent]:
        """Yield the events of one request up to its Done.

        Leaving the iterator early cancels it on the coordinator at once. Raise GenerationError and its kinds;
        raise CoordinatorLost if another coordinator may go on.
        """
        answers: asyncio.Queue[_Answer | None] = asyncio.Queue()
        self._requests[request.id] = answers
        finished = False
        try:
            await self._send(wire.Generate(request))
            while not finished:
                answer = await self._next(answers)
                if isinstance(answer, wire.Rejected):
                    finished = True
                    kind = GENERATION_ERRORS.get(answer.code, GenerationError)
                    raise kind(answer.message, answer.param)
                for event in answer.events:
                    finished = finished or isinstance(event, Done)
                    yield event
        finally:
            self._requests.pop(request.id, None)
            if not finished and self.is_open:
                with contextlib.suppress(GenerationError):
                    await self._send(wire.Cancel(request.id))

    async def close(self) -> None:
        """Close without a farewell, since a coordinator that stands still would never answer it."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._channel.writer.transport.abort()

    async def _next(self, answers: asyncio.Queue[_Answer | None]) -> _Answer:
        try:
            async with asyncio.timeout(SILENCE_TIMEOUT_S):
                answer = await answers.get()
        except TimeoutError:
            raise CoordinatorLost(f"the cluster has been silent for {SILENCE_TIMEOUT_S:.0f} s") from None
        if answer is None:
            raise CoordinatorLost(_LOST)
        return answer

    async def _send(self, message: wire.Message) -> None:
        if not self.is_open:
            raise ClusterUnavailable("the connection to the cluster's coordinator is lost")
        try:
            await self._channel.send(message)
        except LinkLost as error:
            raise ClusterUnavailable(f"the cluster's coordinator cannot be reached: {error}") from None

    async def _read(self) -> None:
        try:
            while True:
                message, _ = await self._channel.receive()
                if isinstance(message, _Answer) and (answers := self._requests.get(message.request_id)):
                    answers.put_nowait(message)
        except (LinkLost, FrameInvalid, PeerRejected) as error:
            log.warning("coordinator lost", reason=str(error))
        finally:
            for answers in self._requests.values():
                answers.put_nowait(None)

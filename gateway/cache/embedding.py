"""Embeds questions on your machines, to find answers to questions of the same meaning."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import msgspec
import structlog

from cluster.errors import GenerationError
from gateway.dialects.openai import EmbeddingRequest, Extras
from gateway.errors import LaneBusy
from gateway.identity.caller import Caller
from gateway.lanes.base import Answer, Call, Lane, Offer
from gateway.routing.decision import Decision
from gateway.routing.queueing.turns import Turns
from gateway.routing.router import Router
from gateway.settings.base import LaneName, Privacy
from runtime.errors import LaneFailed, ServiceError
from runtime.request_ids import new_request_id

log = structlog.get_logger(__name__)

OWN: frozenset[LaneName] = frozenset(("cluster", "pool"))
# If an embedding takes longer, the question goes to a model at once.
PATIENCE_S = 2.0
_BYTES_MAX = 2**20


class _Vector(msgspec.Struct, frozen=True):
    embedding: list[float]


class _Vectors(msgspec.Struct, frozen=True):
    data: Annotated[list[_Vector], msgspec.Meta(min_length=1)]


_vectors = msgspec.json.Decoder(_Vectors)


class Embedder:
    """Ask the best own backend of one embedding model, within the caller's lanes, regions and privacy.

    It is the gateway's own request: it counts against no limit of the caller and is not charged. It does not
    queue: without a free slot there is no embedding.
    """

    def __init__(self, router: Router, lanes: Mapping[LaneName, Lane], turns: Turns, model: str) -> None:
        self._router = router
        self._lanes = lanes
        self._turns = turns
        self._model = model

    async def __call__(self, caller: Caller, privacy: Privacy, text: str) -> list[float] | None:
        """Return the embedding, in the units of its model; None if it is not available now.

        Without it the cache is not searched by meaning.
        """
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await self._ask(replace(caller, lanes=caller.lanes & OWN, models=None), privacy, text)
        except (ServiceError, GenerationError, TimeoutError, msgspec.DecodeError) as error:
            log.warning(
                "prompt not embedded for the cache", model=self._model, reason=str(error) or type(error).__name__
            )
            return None

    async def _ask(self, caller: Caller, privacy: Privacy, text: str) -> list[float] | None:
        request = EmbeddingRequest(model=self._model, input=text, millrace=Extras(privacy=privacy))
        raw = msgspec.json.encode({"model": self._model, "input": text})
        call = Call(new_request_id(), "embedding", request, raw, caller.user_id)
        decision = self._router.decide(caller, call)
        # Embeddings of another model, such as a fallback's, cannot be compared with this one's.
        offers = [candidate.offer for candidate in decision.candidates if candidate.offer.model == self._model]
        if not offers:
            raise LaneFailed(decision.reason)
        offer = next((offer for offer in offers if self._turns.try_take(offer.label, offer.slots)), None)
        if offer is None:
            raise LaneBusy("no backend has a free slot for it")
        try:
            return await self._ask_at(offer, call, decision)
        finally:
            self._turns.leave(offer.label)

    async def _ask_at(self, offer: Offer, call: Call, decision: Decision) -> list[float] | None:
        dispatch = self._router.began(offer.label, decision, offer)
        try:
            answer = await self._lanes[offer.lane].open(call, offer)
            dispatch.first_byte()
            content = await _whole(answer)
        except LaneFailed as error:
            dispatch.refused(error)
            raise
        except BaseException:
            dispatch.left()
            raise
        dispatch.succeeded()
        return _vectors.decode(content).data[0].embedding if answer.status == 200 else None


async def _whole(answer: Answer) -> bytes:
    collected = _Collected()
    try:
        await answer.body.send(collected)
    finally:
        await answer.body.close()
    if collected.size_bytes > _BYTES_MAX:
        raise LaneFailed("a vector is too long")
    return b"".join(collected.chunks)


class _Collected:
    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.size_bytes = 0

    def write(self, data: bytes) -> None:
        self.size_bytes += len(data)
        if self.size_bytes <= _BYTES_MAX:
            self.chunks.append(data)

    @property
    def is_full(self) -> bool:
        return False

    async def drain(self) -> None:
        """Return at once: there is always room, and data beyond the limit is dropped."""

"""The embedder's side of its callers: their connections, their requests and their vectors."""

import asyncio
import contextlib

import structlog

from cluster import wire
from cluster.embedding import Embeddings, EmbedRequest, check_inputs
from cluster.engine.embedding_queue import Job, Outcome
from cluster.engine.embedding_table import EmbeddingTable
from cluster.engine.tickets import rejected
from cluster.errors import ClusterBusy, ClusterUnavailable, GenerationError, LinkLost, PeerRejected
from cluster.models.embedding_model import check_dimensions
from cluster.net.channel import Channel

log = structlog.get_logger(__name__)

REQUESTS_MAX = 512
# The limit of waiting tokens: minutes of work even for small models, and no caller waits longer.
WAITING_TOKENS_MAX = 2_000_000


class EmbeddingReception:
    """Serves every caller's connection of one embedder."""

    def __init__(self, table: EmbeddingTable) -> None:
        self._table = table
        self._requests = 0
        self._waiting_tokens = 0

    async def serve(self, channel: Channel) -> None:
        """Serve one caller until it hangs up, then cancel what it still has running.

        Raise PeerRejected if it is no gateway.
        """
        if channel.peer is None or channel.peer.role != "gateway":
            raise PeerRejected("only gateways may ask for embeddings")
        running: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                message, _ = await channel.receive()
                match message:
                    case wire.Embed(request) if request.id not in running:
                        task = asyncio.create_task(self._answer(channel, request), name=request.id)
                        running[request.id] = task
                        task.add_done_callback(lambda task: running.pop(task.get_name()))
                    case wire.Cancel(request_id) if request_id in running:
                        running[request_id].cancel()
                    case _:
                        pass
        finally:
            for task in list(running.values()):
                task.cancel()

    async def _answer(self, channel: Channel, request: EmbedRequest) -> None:
        """Answer one request. Never raise: the caller gets the error."""
        answer: wire.Message
        vectors = b""
        try:
            done = await self._embed(request)
            answer = wire.Embedded(request.id, done.dimensions, done.token_counts, done.compute_ns)
            vectors = done.vectors
        except GenerationError as error:
            answer = rejected(request.id, error)
        except Exception:  # the edge of one request: the connection carries others, too
            log.exception("request cannot be answered", request_id=request.id)
            answer = rejected(request.id, GenerationError("the texts cannot be embedded"))
        with contextlib.suppress(LinkLost):
            await channel.send(answer, vectors)

    async def _embed(self, request: EmbedRequest) -> Embeddings:
        if self._requests >= REQUESTS_MAX:
            raise ClusterBusy(f"{self._requests} requests for embeddings are already waiting. Try again shortly.")
        self._requests += 1
        try:
            token_ids, dimensions = await self._prepare(request)
            return await self._compute(request.id, token_ids, dimensions)
        finally:
            self._requests -= 1

    async def _prepare(self, request: EmbedRequest) -> tuple[list[list[int]], int]:
        """Return the request's tokens and the length of its vectors.

        Raise GenerationError if it cannot be served.
        """
        embedder = self._table.embedder
        if embedder is None:
            raise ClusterUnavailable("no embedding model is loaded here")
        check_inputs(request)
        dimensions = check_dimensions(self._table.config, embedder.dimensions, request.dimensions)
        token_ids = request.token_ids
        if request.texts:
            # On a thread: the tokenizer takes a while for long texts, and this loop serves others.
            token_ids = await asyncio.to_thread(embedder.encode, request.texts)
        embedder.check(token_ids)
        return token_ids, dimensions

    async def _compute(self, request_id: str, token_ids: list[list[int]], dimensions: int) -> Embeddings:
        tokens = sum(map(len, token_ids))
        if self._waiting_tokens + tokens > WAITING_TOKENS_MAX:
            raise ClusterBusy(
                f"{self._waiting_tokens} tokens are already waiting to be embedded. Try again shortly."
            )
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Outcome] = loop.create_future()

        def settle(outcome: Outcome) -> None:
            if not answered.done():
                answered.set_result(outcome)

        def tell(outcome: Outcome) -> None:
            with contextlib.suppress(RuntimeError):  # The loop is closed: this process ends.
                loop.call_soon_threadsafe(settle, outcome)

        job = Job(request_id, token_ids, dimensions, tell)
        self._waiting_tokens += tokens
        try:
            self._table.deliver(job)
            outcome = await answered
        finally:
            job.is_dropped = True
            self._waiting_tokens -= tokens
        if isinstance(outcome, GenerationError):
            raise outcome
        return outcome

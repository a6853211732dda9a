"""The actor of an embedder: it loads the assigned model and computes the waiting texts, pass by pass."""

import asyncio
import queue
import time
from collections.abc import Callable, Iterable

import structlog
import torch

from cluster import wire
from cluster.compute.embedder import Embedder
from cluster.embedding import EmbedRequest, check_inputs
from cluster.engine.embedding_queue import EmbeddingQueue, Job
from cluster.engine.tickets import REQUESTS_MAX, Cancelled, Tell, rejected
from cluster.errors import ClusterBusy, ClusterError, ClusterUnavailable, GenerationError
from cluster.generation import GenerateRequest
from cluster.models.embedding_model import check_dimensions

log = structlog.get_logger(__name__)

# Tokens of one pass: enough to keep matrix units busy, few enough for the next request to wait only briefly.
PASS_TOKENS = 512


class EmbeddingTable:
    """An actor with one inbox. The thread that reads it also computes; other threads put orders and jobs."""

    def __init__(self, host: str, device: torch.device, report: Tell) -> None:
        self._host = host
        self._device = device
        self._report = report
        # The reception and the queue bound the jobs, and the agent sends only a few orders.
        self._inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._queue = EmbeddingQueue()
        # The event loop reads it, too: the order and its model.
        self._loaded: tuple[wire.AssignEmbedder, Embedder] | None = None
        self.client_port = 0
        self.deployment = ""
        self._done = 0

    def deliver(self, item: object) -> None:
        """Put an order, a Job or a Cancelled into the inbox. Any thread may call this."""
        self._inbox.put(item)

    def stop(self) -> None:
        self._inbox.put(None)

    @property
    def vitals(self) -> wire.Vitals:
        """Return the counters for the agent. Its pipe thread calls this."""
        return wire.Vitals(self._done, self._done, len(self._queue.jobs))

    async def prepare(
        self, request: GenerateRequest | EmbedRequest, tell: Callable[[wire.Message, bytes], None]
    ) -> Job:
        """Return the request as a Job for `deliver`.

        Raise GenerationError if it cannot be served, ClusterUnavailable if there is no model, and ClusterBusy if
        too many requests wait.
        """
        if self._loaded is None or not isinstance(request, EmbedRequest):
            raise ClusterUnavailable("no embedding model is loaded here")
        order, embedder = self._loaded
        # During a long pass, jobs stay in the inbox, where the queue's own limit does not count them.
        waiting = self._inbox.qsize() + len(self._queue.jobs)
        if waiting >= REQUESTS_MAX:
            raise ClusterBusy(f"{waiting} requests for embeddings are already waiting. Try again shortly.")
        check_inputs(request)
        dimensions = check_dimensions(order.manifest.config, embedder.dimensions, request.dimensions)
        token_ids = request.token_ids
        if request.texts:
            # On a thread: the tokenizer takes a while for long texts, and this loop serves others.
            token_ids = await asyncio.to_thread(embedder.encode, request.texts)
        embedder.check(token_ids)
        return Job(request.id, token_ids, dimensions, tell)

    def run(self) -> None:
        """Work until `stop`."""
        while True:
            for item in self._arrived():
                match item:
                    case None:
                        return
                    case Job():
                        self._take(item)
                    case Cancelled(request_id):
                        self._queue.drop(request_id)
                    case wire.AssignEmbedder():
                        self._assign(item)
                    case _:
                        pass
            self._compute()

    def _arrived(self) -> list[object]:
        """Return the items of the inbox. Wait for one if there is nothing to compute."""
        items = [] if self._queue.jobs else [self._inbox.get()]
        while True:
            try:
                items.append(self._inbox.get_nowait())
            except queue.Empty:
                return items

    def _take(self, job: Job) -> None:
        try:
            self._queue.add(job)
        except GenerationError as error:
            job.tell(rejected(job.request_id, error), b"")

    def _assign(self, order: wire.AssignEmbedder) -> None:
        self.deployment = order.deployment
        held = self._loaded and self._loaded[0]
        try:
            if held is None or (held.manifest.digest, held.recipe) != (order.manifest.digest, order.recipe):
                self._loaded = None
                self._end(self._queue.jobs, ClusterUnavailable("another embedding model is being loaded"))
                began = time.monotonic()
                embedder = Embedder.open(order.source, order.manifest, order.recipe, self._device)
                self._loaded = order, embedder
                seconds = round(time.monotonic() - began, 2)
                log.info("embedder loaded", model=order.manifest.name, seconds=seconds)
        except (ClusterError, RuntimeError, MemoryError, OSError) as error:
            log.error("embedder not loaded", reason=str(error), exc_info=not isinstance(error, ClusterError))
            self._report(wire.Failed(order.epoch, "embedder", str(error)))
            return
        terms = wire.Terms(order.manifest.digest, "fp32")
        self._report(wire.Ready(order.epoch, "embedder", self._host, 0, self.client_port, terms=terms))

    def _compute(self) -> None:
        texts = self._queue.next_pass(PASS_TOKENS)
        if not texts:
            return
        jobs = list(dict.fromkeys(job for job, _ in texts))
        began_ns = time.perf_counter_ns()
        try:
            if self._loaded is None:
                raise ClusterUnavailable("no embedding model is loaded")
            _, embedder = self._loaded
            vectors = embedder.embed([job.token_ids[at] for job, at in texts])
        except (ClusterError, RuntimeError, MemoryError) as error:
            log.error("embedding failed", reason=str(error), exc_info=not isinstance(error, ClusterError))
            self._end(jobs, error if isinstance(error, GenerationError) else GenerationError(str(error)))
            return
        spent_ns = time.perf_counter_ns() - began_ns
        tokens = sum(len(job.token_ids[at]) for job, at in texts)
        for (job, at), vector in zip(texts, vectors, strict=True):
            job.vectors.append(embedder.truncate(vector, job.dimensions).numpy().tobytes())
            job.compute_ns += spent_ns * len(job.token_ids[at]) // tokens
        self._done += sum(job.answer_if_done() for job in jobs)

    def _end(self, jobs: Iterable[Job], error: GenerationError) -> None:
        for job in list(jobs):
            self._queue.drop(job.request_id)
            job.tell(rejected(job.request_id, error), b"")

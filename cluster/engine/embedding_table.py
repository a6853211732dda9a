"""The thread of an embedder: it loads the assigned model and computes the waiting texts, pass by pass."""

import queue
import time
from collections.abc import Callable

import structlog
import torch

from cluster import wire
from cluster.compute.embedder import Embedder
from cluster.engine.embedding_queue import EmbeddingQueue, Job
from cluster.errors import ClusterError, ClusterUnavailable, GenerationError

log = structlog.get_logger(__name__)

# Tokens of one pass: enough to keep matrix units busy, few enough for the next request to wait only briefly.
PASS_TOKENS = 512

Report = Callable[[wire.Message], None]


class EmbeddingTable:
    """An actor with one inbox. The thread that reads it also computes; other threads put orders and jobs."""

    def __init__(self, host: str, device: torch.device, report: Report) -> None:
        self._host = host
        self._device = device
        self._report = report
        # The reception bounds its jobs by counting them, and the agent sends only a few orders.
        self._inbox: queue.SimpleQueue[wire.Message | Job | None] = queue.SimpleQueue()
        self._queue = EmbeddingQueue()
        self._order: wire.AssignEmbedder | None = None
        # The port where the reception takes callers; known before the first order comes.
        self.client_port = 0
        # The reception reads it, too.
        self.embedder: Embedder | None = None
        self._done = 0

    @property
    def config(self) -> dict[str, object]:
        """The assigned model's config.json."""
        return self._order.manifest.config if self._order else {}

    def deliver(self, item: wire.Message | Job) -> None:
        """Put an order or a job into the inbox. Any thread may call this."""
        self._inbox.put(item)

    def stop(self) -> None:
        self._inbox.put(None)

    @property
    def vitals(self) -> wire.Vitals:
        """Return the counters for the agent. Its pipe thread calls this."""
        return wire.Vitals(self._done, self._done, len(self._queue.jobs))

    def run(self) -> None:
        """Work until `stop`."""
        while True:
            for item in self._arrived():
                if item is None:
                    return
                self._take(item)
            self._compute()

    def _arrived(self) -> list[wire.Message | Job | None]:
        """Return the items of the inbox. Wait for one if there is nothing to compute."""
        items = [] if self._queue.jobs else [self._inbox.get()]
        while True:
            try:
                items.append(self._inbox.get_nowait())
            except queue.Empty:
                return items

    def _take(self, item: wire.Message | Job) -> None:
        if isinstance(item, Job):
            self._queue.add(item)
        elif isinstance(item, wire.AssignEmbedder):
            try:
                self._assign(item)
            except (ClusterError, RuntimeError, MemoryError, OSError) as error:
                log.error("embedder not loaded", reason=str(error), exc_info=not isinstance(error, ClusterError))
                self._report(wire.Failed(item.epoch, "embedder", str(error)))

    def _assign(self, order: wire.AssignEmbedder) -> None:
        held = self._order
        if held is None or (held.manifest.digest, held.recipe) != (order.manifest.digest, order.recipe):
            self.embedder = self._order = None
            self._end_all(ClusterUnavailable("another embedding model is being loaded"))
            began = time.monotonic()
            embedder = Embedder.open(order.source, order.manifest, order.recipe, self._device)
            self._order, self.embedder = order, embedder
            log.info("embedder loaded", model=order.manifest.name, seconds=round(time.monotonic() - began, 2))
        terms = wire.Terms(order.manifest.digest, "fp32")
        self._report(wire.Ready(order.epoch, "embedder", self._host, 0, self.client_port, terms=terms))

    def _compute(self) -> None:
        self._queue.drop()
        texts = self._queue.next_pass(PASS_TOKENS)
        embedder = self.embedder
        if not texts:
            return
        jobs = list(dict.fromkeys(job for job, _ in texts))
        began_ns = time.perf_counter_ns()
        try:
            if embedder is None:
                raise ClusterUnavailable("no embedding model is loaded")
            vectors = embedder.embed([job.token_ids[at] for job, at in texts])
        except (ClusterError, RuntimeError, MemoryError) as error:
            log.error("embedding failed", reason=str(error), exc_info=not isinstance(error, ClusterError))
            for job in jobs:
                job.is_dropped = True
                job.tell(error if isinstance(error, GenerationError) else GenerationError(str(error)))
            return
        spent_ns = time.perf_counter_ns() - began_ns
        tokens = sum(len(job.token_ids[at]) for job, at in texts)
        for (job, at), vector in zip(texts, vectors, strict=True):
            job.vectors.append(embedder.truncate(vector, job.dimensions).numpy().tobytes())
            job.compute_ns += spent_ns * len(job.token_ids[at]) // tokens
        for job in jobs:
            if job.is_done:
                self._done += 1
                job.tell(job.result())

    def _end_all(self, error: GenerationError) -> None:
        for job in self._queue.jobs:
            job.tell(error)
        self._queue = EmbeddingQueue()

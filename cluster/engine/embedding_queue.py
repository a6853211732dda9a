"""Waiting requests for embeddings, and the choice of the texts that are computed together next. No I/O."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from cluster.embedding import Embeddings
from cluster.errors import GenerationError

Outcome = Embeddings | GenerationError


@dataclass(slots=True, eq=False)
class Job:
    """One request under way. The thread that computes calls `tell` once.

    Its texts begin in their order. A caller that gives up sets `is_dropped`.
    """

    request_id: str
    token_ids: list[list[int]]
    dimensions: int
    tell: Callable[[Outcome], None]
    is_dropped: bool = False
    begun: int = 0
    compute_ns: int = 0
    vectors: list[bytes] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return len(self.vectors) == len(self.token_ids)

    def result(self) -> Embeddings:
        counts = [len(ids) for ids in self.token_ids]
        return Embeddings(b"".join(self.vectors), self.dimensions, counts, self.compute_ns)


@dataclass(slots=True)
class EmbeddingQueue:
    """Jobs that have texts left.

    Each gets its turn, so that a long request delays a short one by one pass at most.
    """

    jobs: deque[Job] = field(default_factory=deque)

    def add(self, job: Job) -> None:
        self.jobs.append(job)

    def drop(self) -> None:
        """Forget the jobs that no caller waits for."""
        self.jobs = deque(job for job in self.jobs if not job.is_dropped)

    def next_pass(self, tokens_max: int) -> list[tuple[Job, int]]:
        """Return one text of each job in turn, up to `tokens_max` tokens in total, or one longer text.

        A text that does not fit begins the next pass.
        """
        texts: list[tuple[Job, int]] = []
        tokens = 0
        while self.jobs:
            job = self.jobs[0]
            length = len(job.token_ids[job.begun])
            if texts and tokens + length > tokens_max:
                break
            self.jobs.popleft()
            texts.append((job, job.begun))
            tokens += length
            job.begun += 1
            if job.begun < len(job.token_ids):
                self.jobs.append(job)
        return texts

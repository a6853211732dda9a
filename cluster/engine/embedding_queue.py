"""Waiting requests for embeddings, and the choice of the texts that are computed together next. No I/O."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from cluster import wire
from cluster.engine.tickets import REQUESTS_MAX
from cluster.errors import ClusterBusy, RequestInvalid

# The limit of waiting tokens: minutes of work even for small models, and no caller waits longer.
WAITING_TOKENS_MAX = 2_000_000


@dataclass(slots=True, eq=False)
class Job:
    """One request under way. Its texts begin in their order. `tell` takes its answer, with the vectors."""

    request_id: str
    token_ids: list[list[int]]
    dimensions: int
    tell: Callable[[wire.Message, bytes], None]
    begun: int = 0
    tokens_left: int = field(init=False)
    compute_ns: int = 0
    vectors: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens_left = sum(map(len, self.token_ids))

    def answer_if_done(self) -> bool:
        """Send the answer once all vectors are computed. Tell whether they are."""
        is_done = len(self.vectors) == len(self.token_ids)
        if is_done:
            counts = [len(ids) for ids in self.token_ids]
            embedded = wire.Embedded(self.request_id, self.dimensions, counts, self.compute_ns)
            self.tell(embedded, b"".join(self.vectors))
        return is_done


@dataclass(slots=True)
class EmbeddingQueue:
    """Jobs that have texts left.

    Each gets its turn, so that a long request delays a short one by one pass at most.
    """

    jobs: deque[Job] = field(default_factory=deque)

    def add(self, job: Job) -> None:
        """Add a job. Raise ClusterBusy if too many requests or tokens wait, RequestInvalid if its id is in use."""
        if len(self.jobs) >= REQUESTS_MAX:
            raise ClusterBusy(f"{len(self.jobs)} requests for embeddings are already waiting. Try again shortly.")
        waiting_tokens = sum(other.tokens_left for other in self.jobs)
        if waiting_tokens + job.tokens_left > WAITING_TOKENS_MAX:
            raise ClusterBusy(f"{waiting_tokens} tokens are already waiting to be embedded. Try again shortly.")
        if any(other.request_id == job.request_id for other in self.jobs):
            raise RequestInvalid("a request with this id is already running", "id")
        self.jobs.append(job)

    def drop(self, request_id: str) -> None:
        """Forget a job that no caller waits for."""
        self.jobs = deque(job for job in self.jobs if job.request_id != request_id)

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
            job.tokens_left -= length
            if job.begun < len(job.token_ids):
                self.jobs.append(job)
        return texts

"""What lives as long as the process, built once and handed to whoever needs it."""

import asyncio
from dataclasses import dataclass, field

from cluster.controller import Controller
from gateway.afterwork import Afterwork
from gateway.batches.batches import Batches
from gateway.cache.answers import Answers
from gateway.identity.directory import Directory
from gateway.identity.keys import Keys
from gateway.lanes.base import Lane
from gateway.limits.admission import Admission
from gateway.limits.limits import Limits
from gateway.observability.metrics import Metrics
from gateway.queueing.turns import Turns
from gateway.records.bookkeeping import Bookkeeper
from gateway.records.books import Books
from gateway.records.request_log import RequestLog
from gateway.responses.store import ResponseStore
from gateway.routing.health import LaneHealth
from gateway.routing.patience import Patience
from gateway.routing.router import Router
from gateway.settings import LaneName, Settings


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    metrics: Metrics
    keys: Keys
    directory: Directory
    books: Books
    request_log: RequestLog
    responses: ResponseStore
    batches: Batches
    bookkeeper: Bookkeeper
    admission: Admission
    health: LaneHealth
    lanes: dict[LaneName, Lane]
    router: Router
    controller: Controller
    admin_token: str
    limits: Limits
    answers: Answers
    turns: Turns
    patience: Patience
    afterwork: Afterwork
    counting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))
    """Prompts whose tokens are only counted, so many at once."""

"""Objects that live as long as the process, built once and passed to the modules that need them."""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cluster.controller import Controller
from gateway.afterwork import Afterwork
from gateway.batches.batches import Batches
from gateway.cache.answers import AnswerCache
from gateway.guests.guests import Guests
from gateway.identity.directory import Directory
from gateway.identity.keys import Keys
from gateway.lanes.base import Lane
from gateway.lanes.cloud import CloudLane
from gateway.limits.admission import Admission
from gateway.limits.limits import Limits
from gateway.metrics.metrics import Metrics
from gateway.observability.history import History
from gateway.pool.model_terms import ModelTerms
from gateway.queueing.turns import Turns
from gateway.records.bookkeeper import Bookkeeper
from gateway.records.books import Books
from gateway.records.request_log import RequestLog
from gateway.responses.store import ResponseStore
from gateway.routing.health import LaneHealth
from gateway.routing.patience import Patience
from gateway.routing.pauses import Pauses
from gateway.routing.router import Router
from gateway.settings import LaneName, Settings
from gateway.storage import Storage

if TYPE_CHECKING:
    from gateway.coordination.factory import Coordination
    from gateway.house.house import House
    from gateway.payments.till import Till


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    metrics: Metrics
    history: History
    keys: Keys
    directory: Directory
    books: Books
    storage: Storage
    request_log: RequestLog
    responses: ResponseStore
    batches: Batches
    bookkeeper: Bookkeeper
    admission: Admission
    health: LaneHealth
    lanes: dict[LaneName, Lane]
    router: Router
    pauses: Pauses
    model_terms: ModelTerms
    controller: Controller
    admin_token: str
    limits: Limits
    answers: AnswerCache
    turns: Turns
    patience: Patience
    afterwork: Afterwork
    guests: Guests
    till: "Till | None" = None
    """Payments, if they are configured."""
    house: "House | None" = None
    """The marketplace, if this gateway operates one."""
    coordination: "Coordination | None" = None
    """Coordination with other gateways, if it is configured."""
    counting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))
    """Limits how many prompts are tokenized in parallel only for a count."""
    verifying: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the ledger is verified: one at a time."""
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the cluster's model is read because an admin asked for it: one at a time."""

    def troubles(self) -> list[str]:
        """Problems for operators to fix: of the data folder, and of the cloud's keys and worker."""
        cloud = self.lanes.get("cloud")
        found = cloud.troubles() if isinstance(cloud, CloudLane) else []
        return [self.storage.trouble, *found] if self.storage.trouble else found

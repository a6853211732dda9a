"""Objects that live as long as the process, built once and passed to the modules that need them."""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cluster.controller import Controller
from gateway.batches.batches import Batches
from gateway.billing.bookkeeper import Bookkeeper
from gateway.billing.ledger_service import LedgerService
from gateway.billing.model_terms import ModelTerms
from gateway.billing.request_log import RequestLog
from gateway.cache.answers import AnswerCache
from gateway.dialects.stored_responses.store import ResponseStore
from gateway.identity.directory import Directory
from gateway.identity.keys import Keys
from gateway.lanes.base import Lane
from gateway.lanes.cloud.lane import CloudLane
from gateway.lanes.preemptible.jobs import PreemptibleJobs
from gateway.limits.admission import Admission
from gateway.limits.limits import Limits
from gateway.metrics.metrics import Metrics
from gateway.requests.factory import RequestPaths
from gateway.routing.health import LaneHealth
from gateway.routing.pauses import Pauses
from gateway.routing.queueing.turns import Turns
from gateway.routing.router import Router
from gateway.settings import LaneName, Settings
from gateway.storage import Storage
from gateway.telemetry.history import History
from runtime.afterwork import Afterwork

if TYPE_CHECKING:
    from gateway.billing.payments.payments_service import PaymentsService
    from market.marketplace.marketplace import Marketplace


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    metrics: Metrics
    history: History
    keys: Keys
    directory: Directory
    ledger: LedgerService
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
    afterwork: Afterwork
    preemptible_jobs: PreemptibleJobs
    requests: RequestPaths
    payments_service: "PaymentsService | None" = None
    """Payments, if they are configured."""
    marketplace: "Marketplace | None" = None
    """The marketplace, if this gateway operates one."""
    counting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))
    """Limits how many prompts are tokenized in parallel only for a count."""
    verifying: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the ledger is verified: one at a time."""
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the cluster's model is read because an admin asked for it: one at a time."""

    def troubles(self) -> list[str]:
        """Problems for operators to fix: of the data directory, and of the cloud's keys and worker."""
        cloud = self.lanes.get("cloud")
        found = cloud.troubles() if isinstance(cloud, CloudLane) else []
        return [self.storage.trouble, *found] if self.storage.trouble else found

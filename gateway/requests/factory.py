"""Builds the paths of requests from the parts of the gateway."""

from dataclasses import dataclass

from cluster.controller import Controller
from gateway.billing.bookkeeper import Bookkeeper
from gateway.billing.ledger_service import LedgerService
from gateway.cache.answers import AnswerCache
from gateway.identity.audit import AuditLog
from gateway.lanes.base import Lanes
from gateway.lanes.pool.members import Pool
from gateway.lanes.preemptible.jobs import PreemptibleJobs
from gateway.limits.admission import Admission
from gateway.limits.limits import Limits
from gateway.metrics.metrics import Metrics
from gateway.requests.attempt import Attempts
from gateway.requests.entry import Admittance
from gateway.requests.failover_target import FailoverTargets
from gateway.requests.hedging import Hedges
from gateway.requests.holds import RequestFunds
from gateway.requests.model_loading import ModelLoading
from gateway.requests.opener import AnswerOpener
from gateway.requests.outage import Outages
from gateway.requests.preemptible_requests import PreemptibleRequests
from gateway.requests.queue_slot import QueueSlots
from gateway.requests.sender import Sender
from gateway.requests.serve import RequestPath
from gateway.requests.settlement import RequestSettler
from gateway.routing.health import LaneHealth
from gateway.routing.queueing.turns import Turns
from gateway.routing.router import Router
from gateway.settings import Settings
from runtime.afterwork import Afterwork


@dataclass(frozen=True, slots=True)
class RequestPaths:
    """The paths of ordinary requests, of preemptible ones, and of those that load or unload a model."""

    ordinary: RequestPath
    preemptible: PreemptibleRequests
    model_loading: ModelLoading


def build_request_paths(
    settings: Settings,
    *,
    admission: Admission,
    afterwork: Afterwork,
    answers: AnswerCache,
    audit: AuditLog,
    bookkeeper: Bookkeeper,
    controller: Controller,
    health: LaneHealth,
    jobs: PreemptibleJobs,
    lanes: Lanes,
    ledger: LedgerService,
    limits: Limits,
    metrics: Metrics,
    pool: Pool,
    router: Router,
    turns: Turns,
) -> RequestPaths:
    """Return the paths; they share all parts, and own nothing that must be stopped."""
    first_byte_s, routing = settings.pool.first_byte_s, settings.routing
    attempts, outages = Attempts(lanes, jobs, metrics, first_byte_s), Outages(health, pool)
    slots = QueueSlots(router, turns, health, outages, metrics, routing.queue_s)
    hedges = Hedges(attempts, slots, turns, router, health, metrics, afterwork, is_enabled=routing.hedging)
    funds = RequestFunds(ledger, metrics)
    opener = AnswerOpener(attempts, hedges, funds, slots, outages, limits, router, metrics)
    targets = FailoverTargets(attempts, opener, slots, router, metrics)
    entry = Admittance(admission, limits, answers, metrics)
    settler = RequestSettler(entry, slots, limits.hang_ups, bookkeeper, metrics)
    sender = Sender(bookkeeper.recounter, targets, settler)
    return RequestPaths(
        RequestPath(entry, slots, opener, targets, funds, sender, settler),
        PreemptibleRequests(jobs, router, opener, settler, metrics),
        ModelLoading(
            admission, jobs, limits, router, slots, attempts, audit, lanes, pool, controller, first_byte_s
        ),
    )

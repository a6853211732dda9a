"""The composition root: builds and starts every service, and ends them in order."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import structlog
from sqlalchemy import Engine
from sqlalchemy.orm import Session
from starlette.routing import Route
from starlette.types import ASGIApp

from accounting.metering.prices import CloudPrices, PriceBook
from accounting.proofs.kept import CheckpointUnusable
from accounting.proofs.maker import BlockMaker
from accounting.proofs.signing_key import KeyFile
from cluster.control.owners import Owners
from cluster.control.specs import DeploymentSpec
from cluster.controller import Controller
from cluster.trust.addresses import Target
from gateway.api import models
from gateway.api.edge import Edge
from gateway.api.generate import GenerateHandler
from gateway.api.health import Monitoring
from gateway.api.plain import PlainRoutes
from gateway.batches.batches import Batches
from gateway.billing.bookkeeper import Bookkeeper
from gateway.billing.ledger_service import LedgerService
from gateway.billing.metering.factory import named_tokenizers, open_recounter, use_cluster, write_prices
from gateway.billing.metering.rates import Rates
from gateway.billing.model_terms import ModelTerms
from gateway.billing.request_log import RequestLog
from gateway.billing.settlement_worker import Booked
from gateway.billing.shared import open_shared
from gateway.billing.spool import Spool
from gateway.cache.answers import AnswerCache
from gateway.cache.embedding import Embedder
from gateway.cache.factory import open_answers
from gateway.database import open_upgraded
from gateway.dialects.stored_responses.store import ResponseStore
from gateway.http.on_demand import OnDemand
from gateway.identity.directory import Directory
from gateway.identity.key_watch import KeyWatch
from gateway.identity.keys import Keys
from gateway.identity.secret import open_secret
from gateway.lanes.aliases import Aliases
from gateway.lanes.base import Lane, Lanes
from gateway.lanes.cloud.lane import CloudLane
from gateway.lanes.cloud.worker.program import CloudWorker
from gateway.lanes.cloud.worker.providers import CloudConfiguration, CloudModel, Timeouts
from gateway.lanes.cluster.lane import ClusterLane
from gateway.lanes.pool.lane import PoolLane
from gateway.lanes.preemptible.admission import OwnWork
from gateway.lanes.preemptible.jobs import PreemptibleJobs
from gateway.limits.admission import Admission
from gateway.limits.factory import open_limits
from gateway.limits.limits import Limits
from gateway.metrics.metrics import Metrics
from gateway.requests.batch_jobs.batch_service import BatchService
from gateway.requests.batch_jobs.lifecycle import BatchLifecycle
from gateway.requests.batch_jobs.runner import Runner as BatchRunner
from gateway.requests.factory import RequestPaths, build_request_paths
from gateway.requests.serve import RequestPath
from gateway.routing.health import LaneHealth
from gateway.routing.pauses import Pausable, Pauses
from gateway.routing.queueing.turns import Turns
from gateway.routing.router import Router
from gateway.settings import CloudSettings, ClusterSettings, LaneName, Settings
from gateway.storage import Storage
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.factory import open_telemetry
from gateway.telemetry.history import History
from runtime.afterwork import Afterwork
from runtime.data_folder import DataFolder
from runtime.database import Commits, read_sessions, write_sessions
from runtime.settings import SettingsInvalid

if TYPE_CHECKING:
    from gateway.billing.payments.payments_service import PaymentsService
    from market.marketplace.marketplace import Marketplace

log = structlog.get_logger(__name__)


def dsn_of(settings: Settings, folder: DataFolder) -> str:
    """Return the database's DSN, which may contain a password."""
    dsn = settings.database.dsn
    return dsn.get_secret_value() if dsn else folder.dsn


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that `open_services` built and runs: only this module and `gateway.serving` have it as a whole."""

    settings: Settings
    storage: Storage
    directory: Directory
    keys: Keys
    metrics: Metrics
    history: History
    admission: Admission
    turns: Turns
    ledger: LedgerService
    request_log: RequestLog
    responses: ResponseStore
    batches: Batches
    bookkeeper: Bookkeeper
    controller: Controller
    pool: PoolLane
    lanes: Lanes
    health: LaneHealth
    model_terms: ModelTerms
    router: Router
    pauses: Pauses
    preemptible_jobs: PreemptibleJobs
    limits: Limits
    answers: AnswerCache
    afterwork: Afterwork
    requests: RequestPaths
    payments_service: "PaymentsService | None"
    """Payments, if they are configured."""
    marketplace: "Marketplace | None"
    """The marketplace, if this gateway operates one."""
    admin_token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)


@asynccontextmanager
async def open_services(settings: Settings, folder: DataFolder) -> AsyncGenerator[Services]:
    """Build and run every service within the block; end them in reverse order."""
    async with AsyncExitStack() as stack:
        base = await _open_base(settings, folder, stack)
        directory = await _open_directory(base)
        metrics = Metrics.create()
        ledger = _open_ledger(base, metrics)
        admission, turns, history = _watch_load(base, metrics)
        records = _open_records(base, ledger, metrics, history)
        lanes = await _open_lanes(base, ledger, records.bookkeeper)
        afterwork = Afterwork()
        stack.push_async_callback(afterwork.stop)
        jobs = PreemptibleJobs(
            lambda: OwnWork(admission.in_flight, batch_runner.open_batches),
            settings.batches.per_backend_max,
            settings.pool.probe_s + settings.pool.probe_timeout_s,
        )
        router = Router(lanes.all, lanes.health, settings.routing, settings.policy, report=metrics.foretold)
        pauses = _open_pauses(base, router, jobs)
        limits = await stack.enter_async_context(
            open_limits(settings.redis, base.read, records.bookkeeper.caught_up)
        )
        metrics.limit_refusals.read = limits.refused
        answers = await _open_answers(base, router, lanes, turns)
        requests = build_request_paths(
            settings,
            admission=admission,
            afterwork=afterwork,
            answers=answers,
            audit=directory.audit,
            bookkeeper=records.bookkeeper,
            controller=lanes.controller,
            health=lanes.health,
            jobs=jobs,
            lanes=lanes.all,
            ledger=ledger,
            limits=limits,
            metrics=metrics,
            pool=lanes.pool.pool,
            router=router,
            turns=turns,
        )
        payments_service = _open_payments_service(base, ledger, metrics)
        marketplace = await _open_marketplace(base, ledger)
        await _open_rates(base, metrics, lambda: admission.in_flight > 0 or bool(jobs.stays))
        batch_runner = _run_batches(base, directory.keys, records, requests.ordinary, router, admission)
        yield Services(
            settings=settings,
            storage=base.storage,
            directory=directory,
            keys=directory.keys,
            metrics=metrics,
            history=history,
            admission=admission,
            turns=turns,
            ledger=ledger,
            request_log=records.request_log,
            responses=records.responses,
            batches=records.batches,
            bookkeeper=records.bookkeeper,
            controller=lanes.controller,
            pool=lanes.pool,
            lanes=lanes.all,
            health=lanes.health,
            model_terms=lanes.terms,
            router=router,
            pauses=pauses,
            preemptible_jobs=jobs,
            limits=limits,
            answers=answers,
            afterwork=afterwork,
            requests=requests,
            payments_service=payments_service,
            marketplace=marketplace,
        )


@dataclass(frozen=True, slots=True)
class _Base:
    """What every step of the start builds upon. What a step has started, `stack` ends."""

    settings: Settings
    folder: DataFolder
    stack: AsyncExitStack
    engine: Engine
    read: Callable[[], Session]
    write: Callable[[], Session]
    commits: Commits
    storage: Storage

    @property
    def has_own_database(self) -> bool:
        """Whether the database is a file of the data directory, which `storage` then watches."""
        return self.settings.database.dsn is None


async def _open_base(settings: Settings, folder: DataFolder, stack: AsyncExitStack) -> _Base:
    engine = open_upgraded(dsn_of(settings, folder))
    stack.callback(engine.dispose)
    storage = Storage(folder.path, folder.database if settings.database.dsn is None else None)
    looking = asyncio.create_task(storage.keep_looking(), name="data directory watch")

    async def stop() -> None:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)

    stack.push_async_callback(stop)
    return _Base(
        settings, folder, stack, engine, read_sessions(engine), write_sessions(engine), Commits(engine), storage
    )


async def _open_directory(base: _Base) -> Directory:
    """Open keys, users and limits, and follow what other processes change of them."""
    settings = base.settings
    secret = open_secret(settings.identity, base.folder.path, base.write)
    keys = Keys(secret, base.read, base.write, commit=base.commits.latest)
    watch = KeyWatch(keys)
    watch.start()
    base.stack.push_async_callback(watch.stop)
    if settings.coordination.etcd_urls:
        from gateway.identity.shared_revocations import share_revocations

        await base.stack.enter_async_context(share_revocations(settings.coordination, keys))
    return Directory.of(keys, settings.identity, settings.policy.lanes, base.read, base.write)


def _open_ledger(base: _Base, metrics: Metrics) -> LedgerService:
    """Start the ledger and its periodic checks. Raises SettingsInvalid."""
    try:
        proofs = BlockMaker(base.read, base.write, KeyFile(base.folder.ledger_key), commit=base.commits.latest)
    except CheckpointUnusable as error:
        raise SettingsInvalid(f"data_dir: {error}") from None
    ledger = LedgerService(base.read, base.write, open_shared(base.settings, base.write), proofs)
    ledger.start()
    if base.has_own_database:
        ledger.unkept_why = lambda: base.storage.trouble
    ledger.inspect()
    base.stack.push_async_callback(ledger.stop)
    metrics.ledger_broken_rules.read = ledger.inspection.by_rule
    metrics.ledger_inspected_seconds.read = ledger.inspection.age_s
    return ledger


def _watch_load(base: _Base, metrics: Metrics) -> tuple[Admission, Turns, History]:
    """Return what admits requests and lets them wait, and the load of the last day."""
    server, routing = base.settings.server, base.settings.routing
    admission = Admission(server.requests_max)
    turns = Turns(routing.queue_length_max, routing.queue_length_of_key_max, routing.connections_max)
    metrics.queue_depth.read = lambda: {(): turns.all_waiting}
    history = History(metrics, lambda: (turns.all_waiting, admission.in_flight))
    history.start()
    base.stack.push_async_callback(history.stop)
    return admission, turns, history


@dataclass(frozen=True, slots=True)
class _Records:
    """What is stored of requests, and the worker that books them."""

    request_log: RequestLog
    responses: ResponseStore
    batches: Batches
    bookkeeper: Bookkeeper


def _open_records(base: _Base, ledger: LedgerService, metrics: Metrics, history: History) -> _Records:
    settings, stack = base.settings, base.stack
    request_log = RequestLog(base.read, base.write, settings.request_log)
    request_log.start()
    stack.callback(request_log.stop)
    storage = base.storage if base.has_own_database else None
    responses = ResponseStore(base.read, base.write, settings.responses, storage)
    responses.start()
    stack.callback(responses.stop)
    batches = Batches(base.read, base.write, base.folder.path / "files", settings.batches)
    batches.open()
    witnesses = [*_witnesses(settings, stack), batches.receipts.note, history.witness]
    recounter = open_recounter(settings.metering, metrics)
    bookkeeper = Bookkeeper(ledger, request_log, metrics, Spool(base.folder.spool), witnesses, recounter)
    bookkeeper.start()
    stack.push_async_callback(bookkeeper.stop)
    return _Records(request_log, responses, batches, bookkeeper)


def _witnesses(settings: Settings, stack: AsyncExitStack) -> list[Callable[[list[Booked]], None]]:
    """Return the receivers of ended requests other than the request log."""
    witnesses: list[Callable[[list[Booked]], None]] = []
    if settings.log.access == "json":
        witnesses.append(AccessLog().write)
    if settings.telemetry.otlp_endpoint:
        telemetry = open_telemetry(settings.telemetry)
        stack.callback(telemetry.stop)
        witnesses.append(telemetry.write)
    return witnesses


@dataclass(frozen=True, slots=True)
class _Lanes:
    """The lanes with their aliases and prices. `all` always has cluster and pool: machines may join at any time."""

    controller: Controller
    pool: PoolLane
    all: dict[LaneName, Lane]
    health: LaneHealth
    terms: ModelTerms


async def _open_lanes(base: _Base, ledger: LedgerService, bookkeeper: Bookkeeper) -> _Lanes:
    controller, health = _controller(base.settings.cluster, base.folder), LaneHealth()
    base.stack.push_async_callback(controller.stop)
    use_cluster(bookkeeper.recounter, controller)
    pool = await _open_pool(base, health)
    cluster = base.settings.cluster
    lanes: dict[LaneName, Lane] = {
        "cluster": ClusterLane(
            controller,
            cluster.slots,
            speculate=cluster.speculation,
            patience_s=base.settings.routing.queue_s,
            aliases=pool.aliases,
        ),
        "pool": pool,
    }
    if base.settings.cloud.models:
        lanes["cloud"] = _open_cloud(base, pool.aliases)
    if base.settings.market.is_wanted:
        lanes["market"] = await _open_market(base, ledger, bookkeeper, pool.aliases)
    terms = ModelTerms(base.read, base.write, lanes)
    await terms.start()
    base.stack.push_async_callback(terms.stop)
    await asyncio.to_thread(write_prices, lanes, base.write)
    return _Lanes(controller, pool, lanes, health, terms)


async def _open_pool(base: _Base, health: LaneHealth) -> PoolLane:
    def note_answer(name: str, was_down: bool) -> None:
        health.of(f"pool:{name}").breakers.answered(was_down=was_down)

    pool = PoolLane(base.settings.pool, base.folder.pool, note_answer)
    base.stack.push_async_callback(pool.stop)
    await pool.start()
    return pool


def _open_cloud(base: _Base, aliases: Callable[[], Aliases]) -> CloudLane:
    settings = base.settings.cloud
    cloud = CloudLane(settings, _cloud_worker(settings, base.folder), _price_book(settings), aliases)
    base.stack.push_async_callback(cloud.stop)
    return cloud


async def _open_market(
    base: _Base, ledger: LedgerService, bookkeeper: Bookkeeper, aliases: Callable[[], Aliases]
) -> Lane:
    """The market lane to third parties' machines, if it is enabled; otherwise none of its modules is imported."""
    from gateway.market_lane import open_market

    return await open_market(
        base.settings.market,
        base.folder.market,
        ledger,
        bookkeeper.recounter.tokenizers,
        named_tokenizers(base.settings.metering),
        lambda: bookkeeper.is_behind,
        base.stack,
        base.write,
        aliases,
    )


def _controller(settings: ClusterSettings, folder: DataFolder) -> Controller:
    return Controller(
        folder.cluster,
        precision=settings.precision,
        slots=settings.slots,
        expected_nodes=max(1, settings.nodes),
        stages_min=settings.stages_min,
        goal=settings.goal,
        owners=_owners(settings),
        context_tokens=settings.context_tokens,
        served_name=settings.served_name,
        further=[
            DeploymentSpec(
                name=model.name,
                reference=model.model,
                kind=model.kind,
                precision=model.precision,
                context_tokens=model.context_tokens,
                priority=model.priority,
                idle_s=model.idle_s,
                is_pinned=model.pinned,
            )
            for model in settings.models
        ],
        reserved=settings.first_names(),
        residence_s=settings.residence_s,
        discovery=settings.discovery,
    )


def _owners(settings: ClusterSettings) -> Owners | None:
    return Owners(settings.owners, settings.owner_layers) if settings.owners else None


def _cloud_worker(settings: CloudSettings, folder: DataFolder) -> CloudWorker:
    models = {
        name: CloudModel(
            litellm_model=model.model,
            base_url=model.base_url,
            key_name=model.key,
            parameters=model.parameters,
            secret_parameters=model.secret_parameters,
        )
        for name, model in settings.models.items()
    }
    keys_file = settings.keys_file or folder.path / "cloud.keys"
    timeouts = Timeouts(
        first_byte_s=settings.first_byte_s, between_chunks_s=settings.silence_s, total_s=settings.total_s
    )
    configuration = CloudConfiguration(models, str(keys_file), timeouts, proxies=settings.proxies)
    return CloudWorker(configuration)


def _price_book(settings: CloudSettings) -> PriceBook:
    """Return the providers' price list. The instance's own prices take precedence."""
    own = {("cloud", name): price for name, model in settings.models.items() if (price := model.own_price)}
    return PriceBook(own, "settings", CloudPrices.installed())


def _open_pauses(base: _Base, router: Router, jobs: PreemptibleJobs) -> Pauses:
    def rest(paused: frozenset[Pausable]) -> None:
        # Paused lanes get no requests; while selling is paused, no preemptible requests are admitted.
        router.pause(paused)
        jobs.is_paused = "selling" in paused

    pauses = Pauses(base.read, base.write, rest)
    pauses.start()
    base.stack.push_async_callback(pauses.stop)
    return pauses


async def _open_answers(base: _Base, router: Router, lanes: _Lanes, turns: Turns) -> AnswerCache:
    settings, model = base.settings, base.settings.cache.semantic_model
    embed = Embedder(router, lanes.all, turns, model) if model else None
    return await base.stack.enter_async_context(
        open_answers(settings.cache, settings.redis, embed, lanes.terms.aliases)
    )


def _open_payments_service(base: _Base, ledger: LedgerService, metrics: Metrics) -> "PaymentsService | None":
    """Payments, if Stripe is configured; otherwise none of their modules is imported."""
    if not base.settings.payments.is_enabled:
        return None
    from gateway.billing.payments.factory import open_payments_service, watch

    payments_service = open_payments_service(
        base.settings, ledger.writer, base.read, base.write, ledger.inspection.check
    )
    watch(payments_service, metrics)
    ledger.frozen_why = payments_service.frozen.why
    payments_service.keeper.start()
    base.stack.push_async_callback(asyncio.to_thread, payments_service.stop)
    return payments_service


async def _open_marketplace(base: _Base, ledger: LedgerService) -> "Marketplace | None":
    """The marketplace, if it is enabled; otherwise none of its modules is imported."""
    settings = base.settings.marketplace
    if not settings.enabled:
        return None
    from gateway.own_marketplace import open_marketplace, watched

    tokenizers = named_tokenizers(base.settings.metering)
    marketplace = open_marketplace(settings, base.folder, ledger, base.engine, tokenizers)
    await base.stack.enter_async_context(watched(marketplace, settings))
    return marketplace


async def _open_rates(base: _Base, metrics: Metrics, is_busy: Callable[[], bool]) -> None:
    """Follow what the own machines' power costs."""
    rates = Rates(base.settings.costs, base.read, base.write, metrics, is_busy)
    await rates.start()
    base.stack.push_async_callback(rates.stop)


def _run_batches(
    base: _Base, keys: Keys, records: _Records, requests: RequestPath, router: Router, admission: Admission
) -> BatchRunner:
    settings, batches = base.settings, records.batches
    service = BatchService(
        requests, router, admission, records.responses, batches.receipts, settings, batches.changed.set
    )
    life = BatchLifecycle(keys, batches, settings)
    runner = BatchRunner(batches, life, service, settings.batches.concurrency, base.commits.latest)
    runner.start()
    base.stack.push_async_callback(runner.stop)
    return runner


def make_generate_handler(services: Services) -> GenerateHandler:
    """Return the handler of the hot routes, which need no web framework."""
    return GenerateHandler(
        services.requests,
        services.responses,
        services.directory.gate,
        services.keys,
        services.settings.server,
    )


def create_app(services: Services, cluster: Target) -> ASGIApp:
    """Return the ASGI application.

    Most of its routes (gateway.web) cost 10 MB, which serving models does not need.
    """
    return Edge(PlainRoutes(_plain_routes(services), OnDemand(lambda: create_web(services, cluster))))


def _plain_routes(services: Services) -> list[Route]:
    monitoring = Monitoring(
        services.settings.cluster,
        services.storage,
        services.ledger,
        services.lanes,
        services.controller,
        services.metrics,
        services.admission,
        services.bookkeeper,
    )
    return [*monitoring.routes(), *models.routes(services.directory.gate, services.lanes)]


def create_web(services: Services, cluster: Target) -> ASGIApp:
    """Return the web application: every route other than the hot ones."""
    from gateway.admin.idle import IdleWatch
    from gateway.admin.ledger_checks import Verifier
    from gateway.api.accounting.routes import accounting_routers
    from gateway.api.token_count import PromptCounter
    from gateway.billing.asked import AskedBefore
    from gateway.console.figures.usage import UsageFigures
    from gateway.console.live import Feeds
    from gateway.console.pages.models.state import FailedRuns
    from gateway.console.pages.selling.first_sales import FirstSales
    from gateway.console.shared_values import Shared
    from gateway.web import make_web

    settings, folder = services.settings, DataFolder(services.settings.data_dir)
    jobs, lanes, admission = services.preemptible_jobs, services.lanes, services.admission
    controller, marketplace = services.controller, services.marketplace
    pinned, aliases = services.bookkeeper.recounter.tokenizers.pinned, services.model_terms.aliases
    made = {
        "asked": AskedBefore(services.directory.write, is_alone=settings.database.dsn is None),
        "cluster": cluster,
        "failed_runs": FailedRuns(),
        "feeds": Feeds(lambda: jobs.is_closed),
        "first_sales": FirstSales(folder.market, marketplace),
        "idle": IdleWatch(jobs, admission, lanes, pinned),
        "prompt_counter": PromptCounter(lanes, controller, aliases, admission, services.limits),
        "shared": Shared(),
        "usage": UsageFigures(services.ledger.look),
        "verifier": Verifier(services.ledger, dsn_of(settings, folder)),
    }
    routers = accounting_routers(has_payments=services.payments_service is not None)
    if marketplace is not None:
        from gateway.api.marketplace.routes import marketplace_routers

        routers += marketplace_routers(marketplace, lambda: jobs.is_closed)
    state = {each.name: getattr(services, each.name) for each in fields(services)} | made
    return make_web(state, _plain_routes(services), routers, settings.server.body_bytes_max)

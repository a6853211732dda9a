"""The composition root: builds and starts every service, and ends them in order."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from sqlalchemy import Engine
from sqlalchemy.orm import Session
from starlette.types import ASGIApp

from accounting.metering.prices import CloudPrices, PriceBook
from accounting.proofs.kept import CheckpointUnusable
from accounting.proofs.maker import BlockMaker
from accounting.proofs.signing_key import KeyFile
from cluster.control.owners import Owners
from cluster.controller import Controller, FurtherModel
from cluster.trust.addresses import Target
from gateway.api.edge import Edge
from gateway.api.generate import GenerateHandler
from gateway.api.plain import PlainRoutes, plain_routes
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
from gateway.lanes.base import Lane
from gateway.lanes.cloud.lane import CloudLane
from gateway.lanes.cloud.worker.program import CloudWorker
from gateway.lanes.cloud.worker.providers import CloudConfiguration, CloudModel, Timeouts
from gateway.lanes.cluster.lane import ClusterLane
from gateway.lanes.pool.lane import PoolLane
from gateway.lanes.preemptible.admission import OwnWork
from gateway.lanes.preemptible.jobs import PreemptibleJobs
from gateway.limits.admission import Admission
from gateway.limits.factory import open_limits
from gateway.metrics.metrics import Metrics
from gateway.requests.batch_jobs.batch_service import BatchService
from gateway.requests.batch_jobs.lifecycle import BatchLifecycle
from gateway.requests.batch_jobs.runner import Runner as BatchRunner
from gateway.requests.factory import build_request_paths
from gateway.routing.health import LaneHealth
from gateway.routing.pauses import Pausable, Pauses
from gateway.routing.queueing.turns import Turns
from gateway.routing.router import Router
from gateway.services import Services
from gateway.settings import CloudSettings, ClusterSettings, LaneName, RoutingSettings, Settings
from gateway.storage import Storage
from gateway.telemetry.access_log import AccessLog
from gateway.telemetry.factory import open_telemetry
from gateway.telemetry.history import History
from runtime.afterwork import Afterwork
from runtime.data_folder import DataFolder
from runtime.database import read_sessions, write_sessions
from runtime.settings import SettingsInvalid

if TYPE_CHECKING:
    from gateway.billing.payments.payments_service import PaymentsService
    from market.marketplace.marketplace import Marketplace

log = structlog.get_logger(__name__)


def dsn_of(settings: Settings, folder: DataFolder) -> str:
    """Return the database's DSN, which may contain a password."""
    dsn = settings.database.dsn
    return dsn.get_secret_value() if dsn else folder.dsn


@asynccontextmanager
async def open_services(settings: Settings, folder: DataFolder) -> AsyncGenerator[Services]:
    """Build and run every service within the block; end them in reverse order."""
    engine = open_upgraded(dsn_of(settings, folder))
    read, write = read_sessions(engine), write_sessions(engine)
    async with AsyncExitStack() as stack:
        stack.callback(engine.dispose)
        database = folder.database if settings.database.dsn is None else None
        storage = await _watch_storage(folder, database, stack)
        secret = open_secret(settings.identity, folder.path, write)
        proofs = _block_maker(read, write, folder)
        ledger = LedgerService(read, write, open_shared(settings, write), proofs)
        _start(ledger, settings)
        if database:
            ledger.unkept_why = lambda: storage.trouble
        ledger.inspect()
        stack.push_async_callback(ledger.stop)
        request_log = RequestLog(read, write, settings.request_log)
        request_log.start()
        stack.callback(request_log.stop)
        response_store = ResponseStore(read, write, settings.responses, storage if database else None)
        response_store.start()
        stack.callback(response_store.stop)
        metrics, lane_health = Metrics.create(), LaneHealth()
        metrics.ledger_broken_rules.read = ledger.inspection.by_rule
        metrics.ledger_inspected_seconds.read = ledger.inspection.age_s
        batches = Batches(read, write, folder.path / "files", settings.batches)
        batches.open()
        admission, turns = Admission(settings.server.requests_max), _turns(metrics, settings.routing)
        history = History(metrics, lambda: (turns.all_waiting, admission.in_flight))
        history.start()
        stack.push_async_callback(history.stop)
        witnesses = [*_witnesses(settings, stack), batches.receipts.note, history.witness]
        recounter = open_recounter(settings.metering, metrics)
        bookkeeper = Bookkeeper(ledger, request_log, metrics, Spool(folder.spool), witnesses, recounter)
        bookkeeper.start()
        stack.push_async_callback(bookkeeper.stop)
        controller = _controller(settings.cluster, folder)
        stack.push_async_callback(controller.stop)
        use_cluster(recounter, controller)
        pool = await _open_pool(settings, folder, lane_health, stack)
        lanes = _open_lanes(settings, folder, controller, pool, stack)
        if settings.market.is_wanted:
            lanes["market"] = await _open_market(settings, folder, ledger, bookkeeper, stack, write, pool.aliases)
        model_terms = ModelTerms(read, write, lanes)
        await model_terms.start()
        stack.push_async_callback(model_terms.stop)
        await asyncio.to_thread(write_prices, lanes, write)
        afterwork = Afterwork()
        stack.push_async_callback(afterwork.stop)
        router = Router(lanes, lane_health, settings.routing, settings.policy, report=metrics.foretold)
        model = settings.cache.semantic_model
        payments_service = _open_payments_service(settings, ledger, metrics, stack, read, write)
        embed = Embedder(router, lanes, turns, model) if model else None
        keys = Keys(secret, read, write)
        watch = KeyWatch(keys)
        watch.start()
        stack.push_async_callback(watch.stop)
        if settings.coordination.etcd_urls:
            from gateway.identity.shared_revocations import share_revocations

            await stack.enter_async_context(share_revocations(settings.coordination, keys))
        preemptible_jobs = PreemptibleJobs(
            lambda: OwnWork(admission.in_flight, batch_runner.open_batches),
            settings.batches.per_backend_max,
            settings.pool.probe_s + settings.pool.probe_timeout_s,
        )
        pauses = Pauses(read, write, partial(_rest, router, preemptible_jobs))
        pauses.start()
        stack.push_async_callback(pauses.stop)
        directory = Directory.of(keys, settings.identity, settings.policy.lanes, read, write)
        limits = await stack.enter_async_context(open_limits(settings.redis, read, bookkeeper.caught_up))
        answers = await stack.enter_async_context(
            open_answers(settings.cache, settings.redis, embed, model_terms.aliases)
        )
        requests = build_request_paths(
            settings,
            admission=admission,
            afterwork=afterwork,
            answers=answers,
            audit=directory.audit,
            bookkeeper=bookkeeper,
            health=lane_health,
            jobs=preemptible_jobs,
            lanes=lanes,
            ledger=ledger,
            limits=limits,
            metrics=metrics,
            pool=pool.pool,
            router=router,
            turns=turns,
        )
        services = Services(
            settings=settings,
            metrics=metrics,
            history=history,
            keys=keys,
            directory=directory,
            ledger=ledger,
            storage=storage,
            request_log=request_log,
            responses=response_store,
            batches=batches,
            bookkeeper=bookkeeper,
            admission=admission,
            limits=limits,
            answers=answers,
            turns=turns,
            afterwork=afterwork,
            preemptible_jobs=preemptible_jobs,
            requests=requests,
            health=lane_health,
            lanes=lanes,
            router=router,
            pauses=pauses,
            model_terms=model_terms,
            controller=controller,
            admin_token=secrets.token_urlsafe(32),
            payments_service=payments_service,
            marketplace=await _open_marketplace(settings, folder, ledger, stack, engine),
        )
        metrics.limit_refusals.read = limits.refused
        rates = Rates(
            settings.costs, read, write, metrics, lambda: admission.in_flight > 0 or bool(preemptible_jobs.stays)
        )
        await rates.start()
        stack.push_async_callback(rates.stop)
        batch_service = BatchService(
            requests.ordinary,
            router,
            admission,
            response_store,
            batches.receipts,
            settings,
            batches.changed.set,
        )
        life = BatchLifecycle(keys, batches, settings)
        batch_runner = BatchRunner(batches, life, batch_service, settings.batches.concurrency)
        batch_runner.start()
        stack.push_async_callback(batch_runner.stop)
        yield services


async def _watch_storage(folder: DataFolder, database: Path | None, stack: AsyncExitStack) -> Storage:
    storage = Storage(folder.path, database)
    looking = asyncio.create_task(storage.keep_looking(), name="data directory watch")

    async def stop() -> None:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)

    stack.push_async_callback(stop)
    return storage


def _open_payments_service(
    settings: Settings,
    ledger: LedgerService,
    metrics: Metrics,
    stack: AsyncExitStack,
    read: Callable[[], Session],
    write: Callable[[], Session],
) -> "PaymentsService | None":
    """Payments, if Stripe is configured; otherwise none of their modules is imported."""
    if not settings.payments.is_enabled:
        return None
    from gateway.billing.payments.factory import open_payments_service, watch

    payments_service = open_payments_service(settings, ledger.writer, read, write, ledger.inspection.check)
    watch(payments_service, metrics)
    ledger.frozen_why = payments_service.frozen.why
    payments_service.keeper.start()
    stack.push_async_callback(asyncio.to_thread, payments_service.stop)
    return payments_service


async def _open_marketplace(
    settings: Settings, folder: DataFolder, ledger: LedgerService, stack: AsyncExitStack, engine: Engine
) -> "Marketplace | None":
    """The marketplace, if it is enabled; otherwise none of its modules is imported."""
    if not settings.marketplace.enabled:
        return None
    from gateway.own_marketplace import open_marketplace, watched

    tokenizers = named_tokenizers(settings.metering)
    marketplace = open_marketplace(settings.marketplace, folder, ledger, engine, tokenizers)
    await stack.enter_async_context(watched(marketplace, settings.marketplace))
    return marketplace


def _block_maker(read: Callable[[], Session], write: Callable[[], Session], folder: DataFolder) -> BlockMaker:
    try:
        return BlockMaker(read, write, KeyFile(folder.ledger_key))
    except CheckpointUnusable as error:
        raise SettingsInvalid(f"data_dir: {error}") from None


def _start(ledger: LedgerService, settings: Settings) -> None:
    try:
        ledger.start()
    except OSError as error:
        where = f"ledger.host, ledger.port: cannot listen at {settings.ledger.host}:{settings.ledger.port}"
        raise SettingsInvalid(f"{where}: {error.strerror or error}") from None


def _turns(metrics: Metrics, settings: RoutingSettings) -> Turns:
    turns = Turns(settings.queue_length_max, settings.queue_length_of_key_max, settings.connections_max)
    metrics.queue_depth.read = lambda: {(): turns.all_waiting}
    return turns


def _rest(router: Router, preemptible_jobs: PreemptibleJobs, paused: frozenset[Pausable]) -> None:
    """Apply an operator's pauses.

    Paused lanes get no requests; while selling is paused, no preemptible requests are admitted.
    """
    router.pause(paused)
    preemptible_jobs.is_paused = "selling" in paused


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


async def _open_pool(
    settings: Settings, folder: DataFolder, health: LaneHealth, stack: AsyncExitStack
) -> PoolLane:
    def note_answer(name: str, was_down: bool) -> None:
        health.of(f"pool:{name}").breakers.answered(was_down=was_down)

    pool = PoolLane(settings.pool, folder.pool, note_answer)
    stack.push_async_callback(pool.stop)
    await pool.start()
    return pool


def _open_lanes(
    settings: Settings,
    folder: DataFolder,
    controller: Controller,
    pool: PoolLane,
    stack: AsyncExitStack,
) -> dict[LaneName, Lane]:
    """Return the configured lanes; always cluster and pool, because machines may join at any time."""
    cluster = settings.cluster
    lanes: dict[LaneName, Lane] = {
        "cluster": ClusterLane(
            controller,
            cluster.slots,
            speculate=cluster.speculation,
            patience_s=settings.routing.queue_s,
            aliases=pool.aliases,
        ),
        "pool": pool,
    }
    if settings.cloud.models:
        worker, prices = _cloud_worker(settings.cloud, folder), _price_book(settings.cloud)
        cloud = CloudLane(settings.cloud, worker, prices, pool.aliases)
        stack.push_async_callback(cloud.stop)
        lanes["cloud"] = cloud
    return lanes


async def _open_market(
    settings: Settings,
    folder: DataFolder,
    ledger: LedgerService,
    bookkeeper: Bookkeeper,
    stack: AsyncExitStack,
    write: Callable[[], Session],
    aliases: Callable[[], Aliases],
) -> Lane:
    """The market lane to third parties' machines, if it is enabled; otherwise none of its modules is imported."""
    from gateway.market_lane import open_market

    recounter, named = bookkeeper.recounter, named_tokenizers(settings.metering)
    return await open_market(
        settings.market,
        folder.market,
        ledger,
        recounter.tokenizers,
        named,
        lambda: bookkeeper.is_behind,
        stack,
        write,
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
            FurtherModel(model.name, model.model, model.kind, model.precision, model.context_tokens)
            for model in settings.models
        ],
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

    def make() -> ASGIApp:
        from gateway.web import make_web

        return make_web(services, cluster)

    return Edge(PlainRoutes(plain_routes(services), OnDemand(make)))

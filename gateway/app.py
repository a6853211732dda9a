"""The composition root: every service built and started, everything ended in order."""

import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import structlog
from starlette.types import ASGIApp

from accounting.metering.prices import CloudPrices, PriceBook
from cluster.control.owners import Owners
from cluster.controller import Controller
from cluster.trust.addresses import Target
from gateway.afterwork import Afterwork
from gateway.api.edge import Edge
from gateway.api.plain import PlainRoutes, plain_routes
from gateway.batches.batches import Batches
from gateway.batches.runner import Runner as BatchRunner
from gateway.cache.embedding import Embedder
from gateway.cache.opening import open_answers
from gateway.cloud_worker.providers import CloudConfiguration, CloudModel, Timeouts
from gateway.cloud_worker.supervisor import CloudWorker
from gateway.data_folder import DataFolder
from gateway.database import open_upgraded, read_sessions, write_sessions
from gateway.http.on_demand import OnDemand
from gateway.identity.directory import Directory
from gateway.identity.keys import Keys
from gateway.identity.secret import open_secret
from gateway.lanes.base import Lane
from gateway.lanes.cloud import CloudLane
from gateway.lanes.cluster import ClusterLane
from gateway.lanes.pool import PoolLane
from gateway.limits.admission import Admission
from gateway.limits.opening import open_limits
from gateway.observability.access_log import AccessLog
from gateway.observability.metrics import Metrics
from gateway.observability.opening import open_telemetry
from gateway.queueing.turns import Turns
from gateway.records.bookkeeping import Bookkeeper
from gateway.records.books import Books
from gateway.records.clerk import Booked
from gateway.records.request_log import RequestLog
from gateway.records.spool import Spool
from gateway.responses.store import ResponseStore
from gateway.routing.health import LaneHealth
from gateway.routing.patience import Patience
from gateway.routing.router import Router
from gateway.services import Services
from gateway.settings import CloudSettings, ClusterSettings, LaneName, RoutingSettings, Settings

log = structlog.get_logger(__name__)


def dsn_of(settings: Settings, folder: DataFolder) -> str:
    """Where the tables are; it may have a password in it."""
    dsn = settings.database.dsn
    return dsn.get_secret_value() if dsn else folder.dsn


@asynccontextmanager
async def open_services(settings: Settings, folder: DataFolder) -> AsyncGenerator[Services]:
    """Everything built and running; ended in reverse order on the way out."""
    engine = open_upgraded(dsn_of(settings, folder))
    read, write = read_sessions(engine), write_sessions(engine)
    async with AsyncExitStack() as stack:
        stack.callback(engine.dispose)
        secret = open_secret(settings.identity, folder.path, write)
        books = Books(read, write)
        books.start()
        books.inspect()
        stack.push_async_callback(books.stop)
        request_log = RequestLog(read, write, settings.request_log)
        request_log.start()
        stack.callback(request_log.stop)
        response_store = ResponseStore(read, write, settings.responses)
        response_store.start()
        stack.callback(response_store.stop)
        metrics, lane_health = Metrics.create(), LaneHealth()
        batches = Batches(read, write, folder.path / "files", settings.batches)
        batches.open()
        witnesses = [*_witnesses(settings, stack), batches.receipts.note]
        bookkeeper = Bookkeeper(books, request_log, metrics, Spool(folder.spool), witnesses)
        bookkeeper.start()
        stack.push_async_callback(bookkeeper.stop)
        controller = Controller(
            folder.cluster,
            precision=settings.cluster.precision,
            slots=settings.cluster.slots,
            expected_nodes=max(1, settings.cluster.nodes),
            stages_min=settings.cluster.stages_min,
            goal=settings.cluster.goal,
            owners=_owners(settings.cluster),
            context_tokens=settings.cluster.context_tokens,
            discovery=settings.cluster.discovery,
        )
        stack.push_async_callback(controller.stop)
        lanes = await _open_lanes(settings, folder, controller, stack)
        afterwork = Afterwork()
        stack.push_async_callback(afterwork.stop)
        router = Router(lanes, lane_health, settings.routing, settings.policy, report=metrics.foretold)
        turns, model = _turns(metrics, settings.routing), settings.cache.semantic_model
        embed = Embedder(router, lanes, turns, model) if model else None
        keys = Keys(secret, read, write)
        services = Services(
            settings=settings,
            metrics=metrics,
            keys=keys,
            directory=Directory.of(keys, settings.identity, settings.policy.lanes, read, write),
            books=books,
            request_log=request_log,
            responses=response_store,
            batches=batches,
            bookkeeper=bookkeeper,
            admission=Admission(settings.server.requests_max),
            limits=await stack.enter_async_context(open_limits(settings.redis, read)),
            answers=await stack.enter_async_context(open_answers(settings.cache, settings.redis, embed)),
            turns=turns,
            patience=Patience(),
            afterwork=afterwork,
            health=lane_health,
            lanes=lanes,
            router=router,
            controller=controller,
            admin_token=secrets.token_urlsafe(32),
        )
        metrics.limit_refusals.read = services.limits.refused
        batch_runner = BatchRunner(services)
        batch_runner.start()
        stack.push_async_callback(batch_runner.stop)
        yield services


def _turns(metrics: Metrics, settings: RoutingSettings) -> Turns:
    turns = Turns(settings.queue_length_max, settings.queue_length_of_key_max)
    metrics.queue_depth.read = lambda: {(): turns.all_waiting}
    return turns


def _witnesses(settings: Settings, stack: AsyncExitStack) -> list[Callable[[list[Booked]], None]]:
    """Who is told of ended requests besides the request log."""
    witnesses: list[Callable[[list[Booked]], None]] = []
    if settings.log.access == "json":
        witnesses.append(AccessLog().write)
    if settings.telemetry.otlp_endpoint:
        telemetry = open_telemetry(settings.telemetry)
        stack.callback(telemetry.stop)
        witnesses.append(telemetry.write)
    return witnesses


async def _open_lanes(
    settings: Settings, folder: DataFolder, controller: Controller, stack: AsyncExitStack
) -> dict[LaneName, Lane]:
    """The lanes that the settings call for; cluster and pool always, since machines may join at any time."""
    cluster = settings.cluster
    lanes: dict[LaneName, Lane] = {
        "cluster": ClusterLane(controller, cluster.slots, speculate=cluster.speculation)
    }
    pool = PoolLane(settings.pool, folder.pool)
    stack.push_async_callback(pool.stop)
    await pool.start()
    lanes["pool"] = pool
    if settings.cloud.models:
        cloud = CloudLane(settings.cloud, _cloud_worker(settings.cloud, folder), _price_book(settings.cloud))
        stack.push_async_callback(cloud.stop)
        lanes["cloud"] = cloud
    return lanes


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
    """The providers' list, with the owner's own prices before it."""
    own = {("cloud", name): price for name, model in settings.models.items() if (price := model.own_price)}
    return PriceBook(own, "settings", CloudPrices.installed())


def create_app(services: Services, cluster: Target) -> ASGIApp:
    """All that is ASGI. Most of its routes (gateway.web) cost 10 MB, which serving models does without."""

    def make() -> ASGIApp:
        from gateway.web import make_web

        return make_web(services, cluster)

    return Edge(PlainRoutes(plain_routes(services), OnDemand(make)))

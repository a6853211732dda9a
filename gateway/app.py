"""The composition root: every service built and started, every route mounted, everything ended in order."""

import secrets
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp

from accounting.prices import CloudPrices, PriceBook
from cluster.control.owners import Owners
from cluster.controller import Controller
from cluster.trust.discovery import Target
from gateway.api import admin, health, models
from gateway.api.edge import Edge
from gateway.api.generate import GenerateEndpoint
from gateway.cloud_worker.providers import CloudConfiguration, CloudModel
from gateway.cloud_worker.supervisor import CloudWorker
from gateway.console import pages
from gateway.data_folder import DataFolder
from gateway.database import open_upgraded, read_sessions, write_sessions
from gateway.errors import GatewayError, MethodNotAllowed, NotFound, RequestInvalid, to_api_error
from gateway.identity.keys import Keys, load_secret
from gateway.lanes.base import Lane
from gateway.lanes.cloud import CloudLane
from gateway.lanes.cluster import ClusterLane
from gateway.lanes.pool import PoolLane
from gateway.limits.admission import Admission
from gateway.observability.metrics import Metrics
from gateway.records.bookkeeping import Bookkeeper
from gateway.records.books import Books
from gateway.records.request_log import RequestLog
from gateway.records.spool import Spool
from gateway.routing.health import LaneHealth
from gateway.routing.router import Router
from gateway.services import Services
from gateway.settings import CloudSettings, ClusterSettings, LaneName, Settings

log = structlog.get_logger(__name__)


@asynccontextmanager
async def open_services(settings: Settings, folder: DataFolder) -> AsyncGenerator[Services]:
    """Everything built and running; ended in reverse order on the way out."""
    dsn = settings.database.dsn
    engine = open_upgraded(dsn.get_secret_value() if dsn else folder.dsn)
    read, write = read_sessions(engine), write_sessions(engine)
    async with AsyncExitStack() as stack:
        stack.callback(engine.dispose)
        books = Books(read, write)
        books.start()
        books.inspect()
        stack.push_async_callback(books.stop)
        request_log = RequestLog(read, write, settings.request_log)
        request_log.start()
        stack.callback(request_log.stop)
        metrics, lane_health = Metrics.create(), LaneHealth()
        bookkeeper = Bookkeeper(books, request_log, metrics, lane_health, Spool(folder.spool))
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
        yield Services(
            settings=settings,
            metrics=metrics,
            keys=Keys(load_secret(folder.path), read, write),
            books=books,
            request_log=request_log,
            bookkeeper=bookkeeper,
            admission=Admission(settings.server.requests_max),
            health=lane_health,
            lanes=lanes,
            router=Router(lanes, lane_health, settings.routing),
            controller=controller,
            admin_token=secrets.token_urlsafe(32),
        )


async def _open_lanes(
    settings: Settings, folder: DataFolder, controller: Controller, stack: AsyncExitStack
) -> dict[LaneName, Lane]:
    """The lanes that the settings call for; the cluster lane always, since machines may join at any time."""
    cluster = settings.cluster
    lanes: dict[LaneName, Lane] = {
        "cluster": ClusterLane(controller, cluster.slots, speculate=cluster.speculation)
    }
    if settings.pool.backends:
        pool = PoolLane(settings.pool)
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
    configuration = CloudConfiguration(models=models, keys_file=str(keys_file), proxies=settings.proxies)
    return CloudWorker(configuration)


def _price_book(settings: CloudSettings) -> PriceBook:
    """The providers' list, with the owner's own prices before it."""
    own = {("cloud", name): price for name, model in settings.models.items() if (price := model.own_price)}
    return PriceBook(own, "settings", CloudPrices.installed())


def create_app(services: Services, cluster: Target) -> ASGIApp:
    """Every route. Those that carry the traffic are plain ASGI; the rest is FastAPI."""
    app = FastAPI(title="Millrace", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.services = services
    app.state.cluster = cluster
    hot: dict[str, ASGIApp] = {
        "/v1/chat/completions": GenerateEndpoint(services, "chat"),
        "/v1/completions": GenerateEndpoint(services, "completion"),
        "/v1/embeddings": GenerateEndpoint(services, "embedding"),
    }
    # FastAPI knows them too, to say of other methods that they are not allowed.
    app.router.routes.extend(Route(path, endpoint, methods=["POST"]) for path, endpoint in hot.items())
    for router in (models.router, health.router, admin.router, pages.router):
        app.include_router(router)
    app.mount("/console/static", pages.static)
    for kind in (GatewayError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _answer_error)
    return Edge(hot, app)


async def _answer_error(request: Request, error: Exception) -> Response:
    """Any route's error in OpenAI's shape."""
    if isinstance(error, HTTPException):
        error = _of_status(request, error)
    elif isinstance(error, RequestValidationError):
        error = _of_field(error)
    elif not isinstance(error, GatewayError):
        log.error("request failed", path=request.url.path, exc_info=error)
    answer = to_api_error(error)
    headers = {name.decode(): value.decode() for name, value in answer.headers}
    return Response(answer.body(), answer.status, headers, "application/json")


def _of_status(request: Request, error: HTTPException) -> GatewayError:
    what = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return NotFound(f"There is no {what}.")
    if error.status_code == 405:
        return MethodNotAllowed(f"{what} is not allowed.")
    return RequestInvalid(str(error.detail))


def _of_field(error: RequestValidationError) -> GatewayError:
    """The first field that is wrong; its place begins with where the field was, as in ("query", "limit")."""
    problem = error.errors()[0]
    param = ".".join(map(str, problem["loc"][1:]))
    return RequestInvalid(f"{param}: {problem['msg']}", param=param)

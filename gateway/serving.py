"""Runs a gateway: starts services, sockets and the cluster, handles signals, and stops everything in order."""

import asyncio
import contextlib
import resource
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog
import uvicorn
from starlette.types import ASGIApp

from cluster.chat_model import ChatModel
from cluster.control.embedding_manager import EmbeddingManager
from cluster.controller import Controller
from cluster.errors import ClusterUnavailable, ModelError
from cluster.models.manifest import Progress
from cluster.nodes.local_nodes import LocalNodes
from cluster.nodes.probe import own_address
from cluster.trust.addresses import Target
from gateway.api.generate import GenerateHandler
from gateway.app import create_app, dsn_of, make_generate_handler, open_services
from gateway.http.hot import HotProtocol
from gateway.identity.directory import Directory
from gateway.lanes.base import Lanes
from gateway.lanes.cloud.lane import CloudLane
from gateway.settings import ServerSettings, Settings
from gateway.upgrade import upgrade_in_process
from runtime import memory
from runtime.data_folder import DataFolder
from runtime.http.hosts import Hosts
from runtime.settings import SettingsInvalid

log = structlog.get_logger(__name__)

# The first deployment of a large model from a slow disk takes minutes.
READY_TIMEOUT_S = 1800.0
# Connections in addition to those whose requests are being answered.
IDLE_CONNECTIONS = 1024
_CANCEL_S = 5.0
_TICK_S = 1.0
# How long threads that write the ledger and logs may delay the event loop at a time. The loop requests its turn at
# every event, so Python's default of 5 ms would delay answers by that time.
_TURN_S = 0.0005
_REACHABLE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - translated, not bound


@dataclass(frozen=True, slots=True)
class Running:
    """A running gateway."""

    base_url: str
    console_url: str
    cluster: Target
    settings: Settings
    directory: Directory
    controller: Controller


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, which would end the process before the nodes are stopped."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._is_wanted = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def main_loop(self) -> None:
        """Run until `end`.

        The date in answers is set each second; checking for the end more often would cost more.
        """
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_wanted.wait(), _TICK_S)

    def end(self) -> None:
        """Accept no more requests, and wait for running ones."""
        self.should_exit = True
        self._is_wanted.set()


async def run(
    settings: Settings, folder: DataFolder, on_ready: Callable[[Running], None], progress: Progress
) -> None:
    """Serve until SIGINT or SIGTERM; a second one does not wait for running requests.

    Parts stop in reverse order: the HTTP server drains, then the nodes stop, then the ledger closes. Raises
    SettingsInvalid, DatabaseUnusable and ModelError if the gateway cannot start.
    """
    listening = _listen(settings.server)
    await upgrade_in_process(dsn_of(settings, folder))
    async with open_services(settings, folder) as services:
        cluster = await _open_cluster_port(settings, services.controller, listening.getsockname()[1])
        running = _describe(settings, listening, cluster, services.directory, services.controller)
        folder.write_running(running.base_url, services.admin_token)
        async with _local_nodes(settings, folder, services.controller) as nodes:
            app = create_app(services, cluster)
            memory.settle()
            sys.setswitchinterval(_TURN_S)
            async with _http_server(app, make_generate_handler(services), settings, listening) as stopped:
                starting = asyncio.create_task(
                    _start_cluster(settings, running, nodes, progress), name="cluster start"
                )
                try:
                    await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
                    if starting.done():
                        starting.result()
                        on_ready(running)
                        _warm(services.lanes)
                        await stopped
                finally:
                    starting.cancel()
                    services.preemptible_jobs.close()
                    folder.forget_running()
                    log.info("stopping", in_flight=services.admission.in_flight)
                    # The nodes stop next, so none may start from now on.
                    await asyncio.wait((starting,), timeout=_CANCEL_S)


def _warm(lanes: Lanes) -> None:
    """Start slow parts after the rest, so that they are ready for a request that goes to the cloud."""
    cloud = lanes.get("cloud")
    if isinstance(cloud, CloudLane):
        cloud.warm()


def _listen(server: ServerSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    try:
        return socket.create_server((server.host, server.port), family=family, backlog=1024)
    except OSError as error:
        raise SettingsInvalid(f"server: cannot listen on {server.host}:{server.port}: {error.strerror}") from None


async def _open_cluster_port(settings: Settings, controller: Controller, http_port: int) -> Target:
    """Return the nodes' port: the configured one, or the one after the HTTP port, or any if that is taken."""
    host = settings.cluster.host or settings.server.host
    port = settings.cluster.port or http_port + 1
    try:
        return Target(host, await controller.start(host, port))
    except (OSError, OverflowError) as error:
        if settings.cluster.port:
            raise SettingsInvalid(f"cluster: cannot listen on {host}:{port}: {error}") from None
    return Target(host, await controller.start(host, 0))


def _describe(
    settings: Settings, listening: socket.socket, cluster: Target, directory: Directory, controller: Controller
) -> Running:
    host, port = _REACHABLE.get(settings.server.host, settings.server.host), listening.getsockname()[1]
    root = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    return Running(f"{root}/v1", f"{root}/console", cluster, settings, directory, controller)


@asynccontextmanager
async def _local_nodes(
    settings: Settings, folder: DataFolder, controller: Controller
) -> AsyncGenerator[LocalNodes]:
    cluster = settings.cluster
    nodes = LocalNodes(cluster.nodes, folder.nodes, cluster.memory_share, settings.log.style, cluster.kv_disk_gb)
    try:
        yield nodes
    finally:
        # Stop the controller first: it would otherwise make a new plan for every node that stops.
        await controller.stop()
        await nodes.stop()


@asynccontextmanager
async def _http_server(
    app: ASGIApp, desk: GenerateHandler, settings: Settings, listening: socket.socket
) -> AsyncGenerator["asyncio.Task[None]"]:
    """Serve within the block; yield the task that ends when a signal arrives."""
    server_settings = settings.server
    hosts = Hosts.of(listening.getsockname()[0], settings.identity.public_url, desk.proxies)
    config = uvicorn.Config(
        app,
        http=HotProtocol.serving(desk, hosts),
        ws="none",
        lifespan="off",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        log_config=None,
        limit_concurrency=_room_for_connections(server_settings.requests_max + IDLE_CONNECTIONS),
        timeout_graceful_shutdown=server_settings.drain_s,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]), name="http server")
    stopped = asyncio.create_task(_until_signal(server), name="signals")
    serving.add_done_callback(lambda _: stopped.cancel())
    try:
        yield stopped
    finally:
        server.end()
        await asyncio.gather(serving, return_exceptions=True)
        await _end_requests(server)


def _room_for_connections(connections: int) -> int:
    """Return the maximum number of connections: each can take three descriptors, one of them to a backend.

    Many systems have a low soft limit, which a process may raise; the hard limit is the owner's.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return connections
    files = max(soft, 3 * connections)
    if hard != resource.RLIM_INFINITY:
        files = min(files, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    room = min(connections, files // 3)
    if room < connections:
        log.warning("limit of open files is low", connections_max=room, open_files_max=files)
    return room


async def _end_requests(server: _Server) -> None:
    """End remaining requests while lanes and the ledger can still settle them."""
    left = set(server.server_state.tasks)
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=_CANCEL_S)


async def _until_signal(server: _Server) -> None:
    is_ending = asyncio.Event()

    def obey() -> None:
        server.force_exit = is_ending.is_set()
        is_ending.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, obey)
    await is_ending.wait()


def _for_local_nodes(cluster: Target) -> Target:
    """Return the controller's address for local nodes.

    A node listens for the pipeline on the address from which it reaches the controller.

    If other machines may join, they must be able to reach that address, too.
    """
    if cluster.host not in _REACHABLE:
        return cluster
    return Target(own_address(ipv6=":" in cluster.host) or _REACHABLE[cluster.host], cluster.port)


@asynccontextmanager
async def _beside(works: list[Coroutine[None, None, object]]) -> AsyncGenerator["asyncio.Future[list[object]]"]:
    """Run work during the block only; yield a future that is done when all of it is done."""
    tasks = [asyncio.create_task(work) for work in works]
    together = asyncio.gather(*tasks)
    try:
        yield together
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(together, *tasks, return_exceptions=True)


async def _load_further(model: ChatModel | EmbeddingManager, reference: str) -> None:
    """Load a model beside the first ones, which serve even if this one has no files. `/readyz` says why."""
    try:
        await model.load_model(reference)
    except ModelError as error:
        log.error("model not loaded", model=reference, reason=str(error))


async def _start_cluster(settings: Settings, running: Running, nodes: LocalNodes, progress: Progress) -> None:
    """Start local nodes and load the models.

    Return when all models serve, or the reason why they cannot is known.
    """
    controller, cluster = running.controller, settings.cluster
    reading: list[Coroutine[None, None, object]] = []
    served: list[Callable[[float], Awaitable[None]]] = []
    if cluster.model:
        reading.append(controller.chat.load_model(cluster.model, progress))
        served.append(controller.chat.wait_ready)
    if cluster.embedding_model:
        reading.append(controller.embeddings.load_model(cluster.embedding_model))
        served.append(controller.embeddings.readiness.wait)
    for model, reference in controller.further:
        reading.append(_load_further(model, reference))
        served.append(model.readiness.settle)
    async with _beside(reading) as models:
        target = _for_local_nodes(running.cluster)
        await nodes.start(target, [controller.new_token() for _ in range(cluster.nodes)])
        nodes.keep_running(controller.new_token, controller.absences)
        await models
    if not cluster.nodes:
        return
    for wait in served:
        try:
            await wait(READY_TIMEOUT_S)
        except ClusterUnavailable as error:
            # Other lanes may serve, and machines may join: show the reason and continue.
            log.error("cluster not ready", reason=error.message)

"""The seller's process: its loopback socket, its way in, its signals and its shutdown."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import uvicorn

from accounting.proofs.signing_key import Signer
from market.network.challenge import is_behind
from market.network.identity import OwnIdentity
from market.network.outbound import Outbound
from market.seller.agent import Agent, open_agent
from market.seller.app import AgentApp
from market.seller.carrier import AgentProtocol
from market.seller.own_gateway import OwnGateway
from market.seller.pull import Pull
from market.seller.reach import Reach, Reaches
from market.seller.tunnel import Tunnel
from market.seller.tunnel_process import TunnelOptions
from market.settings.seller import SellingSettings
from runtime.data_folder import DataFolder
from runtime.settings import SettingsInvalid

CONNECTIONS_MAX = 512
SAY_WITHIN_S = 60.0
"""Seconds that the first line waits until buyers can reach us; then it says that they cannot yet."""
KEY_LOOK_S = 30.0
_CLOSE_S = 5


@dataclass(frozen=True, slots=True)
class RunningSeller:
    """A running seller, reachable at `endpoint` if that is known by now."""

    endpoint: str | None
    identity: str


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the agent drains before its server stops."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


async def run(
    settings: SellingSettings, folder: DataFolder, own: OwnIdentity, on_ready: Callable[[RunningSeller], None]
) -> None:
    """Sell until SIGINT or SIGTERM; a second signal does not wait for answers.

    Raises:
        SettingsInvalid: the port is taken, or a setting cannot be used.
        IdentityInvalid: our own key is revoked.
    """
    stopped = _stopped_by_signals()
    with listening(settings.port) as listener:
        async with (
            open_agent(settings, folder, own, OwnGateway.of_folder(folder)) as agent,
            serving(agent.app, listener),
            _beside(agent, settings, _url(listener)) as tasks,
        ):
            saying = asyncio.create_task(_say(agent, on_ready), name="first line")
            ended = asyncio.create_task(stopped.get(), name="signals")
            done, _ = await asyncio.wait({ended, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            saying.cancel()
            await _drain(agent, stopped)
            for task in done - {ended}:
                task.result()  # raises the agent's error


@contextlib.contextmanager
def listening(port: int) -> Generator[socket.socket]:
    """Yield a socket on loopback only: outside callers come through the tunnel.

    Raises SettingsInvalid if the port cannot be used.
    """
    try:
        listener = socket.create_server(("127.0.0.1", port), backlog=128)
    except OSError as error:
        raise SettingsInvalid(f"selling.port: {port} cannot be used: {error.strerror}") from None
    with listener:
        yield listener


@asynccontextmanager
async def serving(app: AgentApp, listener: socket.socket) -> AsyncGenerator[None]:
    """Run the agent's server within the block."""
    config = uvicorn.Config(
        app,
        http=AgentProtocol,
        ws="none",
        lifespan="off",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        log_config=None,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=_CLOSE_S,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]), name="agent's server")
    try:
        yield
    finally:
        server.should_exit = True
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def _beside(
    agent: Agent, settings: SellingSettings, service_url: str
) -> AsyncGenerator["set[asyncio.Task[None]]"]:
    """Run the agent's own tasks and its way in, until the block is left."""
    tasks = {asyncio.create_task(agent.run(), name="agent")}
    if settings.tunnel == "loopback":
        agent.reaches.tell(Reach(True, service_url))
    else:
        tasks.add(asyncio.create_task(_keep_way_in(agent, settings, service_url), name="way in"))
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _keep_way_in(agent: Agent, settings: SellingSettings, service_url: str) -> None:
    """Keep the way in open. It proves our identity with the current key, so a new key restarts it."""
    while True:
        signer = agent.own.signer
        way = way_in_of(
            settings,
            service_url,
            agent.own.id,
            signer,
            agent.outbound,
            lambda: agent.marketplace_identity,
            agent.reaches,
        )
        keeping = asyncio.create_task(way.run(), name="way in's keeper")
        try:
            while agent.own.signer.public_key == signer.public_key and not keeping.done():
                await asyncio.wait({keeping}, timeout=KEY_LOOK_S)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
        if not keeping.cancelled():
            keeping.result()


async def _say(agent: Agent, on_ready: Callable[[RunningSeller], None]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SAY_WITHIN_S):
            async for reach in agent.reaches.changes():
                if reach.is_open:
                    break
    on_ready(RunningSeller(agent.reaches.now.address, agent.own.id))


async def _drain(agent: Agent, stopped: "asyncio.Queue[None]") -> None:
    """Wait until nothing runs any more, or a second signal arrives."""
    draining = asyncio.create_task(agent.drain(), name="drain")
    hurried = asyncio.create_task(stopped.get(), name="second signal")
    try:
        await asyncio.wait({draining, hurried}, return_when=asyncio.FIRST_COMPLETED)
        if not draining.done():
            agent.job_handler.admission.stop.set()
            draining.cancel()
    finally:
        hurried.cancel()
        await asyncio.gather(draining, hurried, return_exceptions=True)


def _stopped_by_signals() -> "asyncio.Queue[None]":
    stopped: asyncio.Queue[None] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.put_nowait, None)
    return stopped


def _url(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def way_in_of(
    settings: SellingSettings,
    service_url: str,
    identity: str,
    signer: Signer,
    outbound: Outbound,
    marketplace: Callable[[], str | None],
    reaches: Reaches,
) -> Tunnel | Pull:
    """Return the configured way in; `service_url` is the agent's own port, `http://127.0.0.1:PORT`.

    `marketplace` returns the identity of the marketplace that was contacted, None before.

    Raises:
        SettingsInvalid: no tunnel is configured, and no marketplace to fetch work from.
    """
    if settings.tunnel == "none":
        if settings.marketplace_url is None:
            raise SettingsInvalid(
                "selling.marketplace_url is needed to fetch work without a tunnel. Set it, or use a tunnel."
            )
        return Pull(settings.marketplace_url, identity, signer, outbound, service_url, marketplace, reaches)

    async def probe(address: str) -> bool:
        return await is_behind(outbound, address, identity, signer.public_key.hex())

    is_named = settings.tunnel == "named"
    options = TunnelOptions(
        service_url,
        token_file=settings.tunnel_token_file if is_named else None,
        public_url=settings.public_url if is_named else "",
        cloudflared=settings.cloudflared,
        allows_loopback=settings.allows_loopback,
    )
    return Tunnel(options, reaches, probe=probe)

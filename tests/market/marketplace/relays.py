"""A marketplace that does nothing but relay, on a real socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import uvicorn
from fastapi import FastAPI, Request, Response
from starlette.types import ASGIApp

from accounting.errors import LedgerError
from gateway.api.marketplace.relay import Relay, relay_router
from gateway.http.error_response import error_response
from market.marketplace.relay_queue import RelayBounds
from market.protocol.identity.lineage import Identities
from runtime.errors import ServiceError
from tests.market.parties import id_of

PATIENCE_S = 60.0
MARKETPLACE = id_of("marketplace")
BOUNDS = RelayBounds(poll_s=5.0, first_part_s=2.0, gap_s=2.0, slow_reader_s=2.0)


@dataclass(frozen=True, slots=True)
class RelayingMarketplace:
    relay: Relay
    url: str

    def endpoint(self, seller: str) -> str:
        """What stands for a seller's own address."""
        return f"{self.url}/market/v1/relay/{seller}"


@asynccontextmanager
async def relaying(seller: str, bounds: RelayBounds = BOUNDS) -> AsyncIterator[RelayingMarketplace]:
    relay = Relay(
        MARKETPLACE,
        Identities().standing,
        lambda identity: identity == seller,
        lambda _: ("buyer:ann", "seller:sam"),
        bounds,
    )
    app = FastAPI()
    app.include_router(relay_router(relay))
    for kind in (ServiceError, LedgerError):
        app.add_exception_handler(kind, _refuse)
    async with served(app) as url:
        yield RelayingMarketplace(relay, url)


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncIterator[str]:
    config = uvicorn.Config(app, port=0, log_config=None, lifespan="off", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    async with asyncio.timeout(PATIENCE_S):
        while not server.started:
            await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


async def _refuse(request: Request, error: Exception) -> Response:
    return error_response(error, request.url.path)

"""The gateway and marketplace of a seller under test, on a real server; the test sets their replies."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from market.seller.own_gateway import Running
from runtime.data_folder import ADMIN_HEADER
from tests.clusters import DEMO_MODEL
from tests.market.parties import id_of

Json = dict[str, Any]
ADMIN = "admin-token"
MODEL = "demo"
HANG_UP = "hang up"
STALL = "stall"


def chunk(text: str, finish: str | None = None, **more: Any) -> Json:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion.chunk", "model": "secret-backend", "choices": [choice], **more}


def words(count: int) -> list[Json | str]:
    return [chunk(f" word{n}") for n in range(count)]


END = chunk("", "stop")

DEMO_TOKENIZER = hashlib.sha256((DEMO_MODEL / "tokenizer.json").read_bytes()).hexdigest()


@dataclass
class Stage:
    """`script` is the next answer's events; with `steps` each waits for the test to let it go."""

    script: list[Json | str] = field(default_factory=lambda: [*words(5), END])
    steps: asyncio.Semaphore | None = None
    refusal: tuple[int, str] | None = None
    slots: int = 2
    queue_empty_s: float = 1000.0
    own_batches: int = 0
    is_paused: bool = False
    state: str = ""
    """How the agent said that it is."""
    has_jobs: bool = True
    is_away: bool = False
    marketplace_is_up: bool = True
    marketplace_id: str = "marketplace"
    marketplace_says: str | None = None
    """In place of whatever it should say of itself and of accounts."""
    settling: list[int] = field(default_factory=list)
    """HTTP statuses of the marketplace's next answers to a settlement, before it takes one again."""
    requests: list[Json] = field(default_factory=list)
    sales: list[Json] = field(default_factory=list)
    settlements: list[Json] = field(default_factory=list)
    registered: list[Json] = field(default_factory=list)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    keys: list[str] = field(default_factory=list)
    version: int = 1
    port: int = 0

    @property
    def running(self) -> Running:
        return Running(f"{self.url}/v1", ADMIN)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def marketplace_identity(self) -> str:
        return id_of(self.marketplace_id)

    async def idle(self, request: web.Request) -> web.Response:
        self.state = request.query["state"]
        assert request.headers[ADMIN_HEADER] == ADMIN
        known = int(request.query.get("version", "0"))
        for _ in range(400):
            if known != self.version or self.is_away:
                break
            await asyncio.sleep(0.02)
        if self.is_away:
            return web.Response(status=503)
        model = {
            "id": MODEL,
            "slots_free": self.slots,
            "slots": self.slots,
            "context_tokens": 4096,
            "weights_sha256": "a" * 64,
            "tokenizer_path": str(DEMO_MODEL / "tokenizer.json"),
        }
        facts = {"queue_empty_s": self.queue_empty_s, "own_in_flight": 0, "preemptible_jobs": 0, "models": [model]}
        return web.json_response(
            {"version": self.version, "own_batches": self.own_batches, "is_paused": self.is_paused, **facts}
        )

    async def key(self, request: web.Request) -> web.Response:
        if not self.has_jobs:
            return web.json_response({"error": {"code": "conflict", "message": "no"}}, status=409)
        self.keys.append(f"job-{len(self.keys)}")
        return web.json_response({"key": self.keys[-1]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        if request.headers["authorization"] != f"Bearer {self.keys[-1]}":
            return web.json_response({"error": {"code": "invalid_api_key"}}, status=401)
        self.requests.append(await request.json())
        self.headers = dict(request.headers)
        if self.refusal:
            status, code = self.refusal
            return web.json_response({"error": {"code": code, "message": "no"}}, status=status)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        try:
            await self._play(response, request)
        except (asyncio.CancelledError, ConnectionResetError):
            self.stopped.set()
            raise
        return response

    async def _play(self, response: web.StreamResponse, request: web.Request) -> None:
        for event in self.script:
            if self.steps:
                await self.steps.acquire()
            if event == STALL:
                await asyncio.Event().wait()
            if event == HANG_UP:
                assert request.transport
                request.transport.abort()
                return
            data = event if isinstance(event, str) else json.dumps(event)
            await response.write(f"data: {data}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")

    async def sale(self, request: web.Request) -> web.Response:
        self.sales.append(await request.json())
        return web.json_response({})

    async def marketplace(self, request: web.Request) -> web.Response:
        if not self.marketplace_is_up:
            return web.json_response({"error": {"message": "away"}}, status=503)
        if self.marketplace_says is not None:
            return web.Response(text=self.marketplace_says)
        return web.json_response(
            {
                "identity": self.marketplace_identity,
                "statements": [],
                "ledger_checkpoint": f"7:{'b' * 64}",
                "tokenizers": [DEMO_TOKENIZER],
            }
        )

    async def me(self, request: web.Request) -> web.Response:
        if self.marketplace_says is not None:
            return web.Response(text=self.marketplace_says)
        return web.json_response({"account": "ann", "identities": [each["identity"] for each in self.registered]})

    async def register(self, request: web.Request) -> web.Response:
        self.registered.append(await request.json())
        return web.json_response({})

    async def settle(self, request: web.Request) -> web.Response:
        if not self.marketplace_is_up:
            return web.json_response({"error": {"message": "away"}}, status=503)
        if self.settling:
            return web.json_response({"error": {"message": "no"}}, status=self.settling.pop(0))
        self.settlements.append(await request.json())
        return web.json_response({})


@asynccontextmanager
async def staged() -> AsyncIterator[Stage]:
    stage = Stage()
    app = web.Application()
    app.router.add_get("/admin/idle", stage.idle)
    app.router.add_post("/admin/preemptible-key", stage.key)
    app.router.add_post("/admin/market/sales", stage.sale)
    app.router.add_post("/v1/chat/completions", stage.chat)
    app.router.add_post("/v1/completions", stage.chat)
    app.router.add_get("/market/v1/marketplace", stage.marketplace)
    app.router.add_get("/market/v1/sellers/me", stage.me)
    app.router.add_post("/market/v1/sellers", stage.register)
    app.router.add_post("/market/v1/settlements", stage.settle)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    stage.port = runner.addresses[0][1]
    try:
        yield stage
    finally:
        await runner.cleanup()

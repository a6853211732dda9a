"""The pool lane: whole copies of models behind any OpenAI-compatible server; bytes pass as they are."""

import asyncio
import contextlib
from dataclasses import dataclass, field

import aiohttp
import orjson
import structlog

from gateway.lanes.base import Answer, Call, Offer, State
from gateway.lanes.relay import CONNECT_S, StreamReader, Upstream, WholeReader, relay
from gateway.settings import LaneName, PoolBackend, PoolSettings

log = structlog.get_logger(__name__)

_LIST_BYTES_MAX = 2**20
_CONNECTIONS = 256


@dataclass(slots=True)
class _Backend:
    """A backend and what its last probe found."""

    settings: PoolBackend
    models: frozenset[str] = field(default_factory=frozenset)
    state: State = "starting"
    note: str = "not asked yet"

    @property
    def headers(self) -> dict[str, str]:
        key = self.settings.api_key
        return {"authorization": f"Bearer {key.get_secret_value()}"} if key else {}


class PoolLane:
    """Asks every backend for its models every few seconds; what it found last is what it offers."""

    name: LaneName = "pool"

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self._backends = {backend.name: _Backend(backend) for backend in settings.backends}
        self._session: aiohttp.ClientSession | None = None
        self._probing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when every backend has been asked once."""
        connector = aiohttp.TCPConnector(limit=0, limit_per_host=_CONNECTIONS)
        self._session = aiohttp.ClientSession(connector=connector)
        await self._probe_all()
        self._probing = asyncio.create_task(self._keep_probing(), name="pool probes")

    async def stop(self) -> None:
        if self._probing:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)
        if self._session:
            await self._session.close()

    def models(self) -> list[str]:
        return sorted({model for backend in self._backends.values() for model in backend.models})

    def offers(self, model: str) -> list[Offer]:
        return [
            Offer(lane="pool", backend=name, model=model, state=backend.state, note=backend.note)
            for name, backend in self._backends.items()
            if model in backend.models
        ]

    async def open(self, call: Call, offer: Offer) -> Answer:
        assert self._session
        backend = self._backends[offer.backend]
        upstream = Upstream(
            name=backend.settings.name,
            session=self._session,
            base_url=backend.settings.base_url.rstrip("/"),
            headers=backend.headers,
            first_byte_s=self._settings.first_byte_s,
            silence_s=self._settings.silence_s,
        )
        reader = StreamReader() if call.request.is_stream else WholeReader()
        return await relay(upstream, call, call.raw, reader)

    async def _keep_probing(self) -> None:
        while True:
            await asyncio.sleep(self._settings.probe_s)
            await self._probe_all()

    async def _probe_all(self) -> None:
        await asyncio.gather(*(self._probe(backend) for backend in self._backends.values()))

    async def _probe(self, backend: _Backend) -> None:
        before = backend.state
        found, problem = await self._ask_models(backend)
        if found or not backend.models:
            backend.models = frozenset(backend.settings.models) or found
        backend.state, backend.note = ("down", problem) if problem else ("ready", "")
        if backend.state != before:
            log.info("pool backend", backend=backend.settings.name, state=backend.state, reason=backend.note)

    async def _ask_models(self, backend: _Backend) -> tuple[frozenset[str], str]:
        """What GET /models lists, and what is wrong if anything."""
        assert self._session
        url = backend.settings.base_url.rstrip("/") + "/models"
        try:
            async with asyncio.timeout(CONNECT_S), self._session.get(url, headers=backend.headers) as response:
                content = await response.content.read(_LIST_BYTES_MAX)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return frozenset(), f"cannot be reached ({type(error).__name__})"
        if response.status != 200 and not backend.settings.models:
            return frozenset(), f"answers {response.status} to GET /models"
        with contextlib.suppress(ValueError, TypeError, KeyError):
            listed = orjson.loads(content)["data"]
            return frozenset(str(entry["id"]) for entry in listed), ""
        return frozenset(), "" if backend.settings.models else "lists no models"

"""The backends of the pool, from the settings and added later, each with its probe task."""

import asyncio
import contextlib
import contextvars
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from gateway.errors import StorageUnavailable
from gateway.lanes.aliases import Aliases
from gateway.lanes.base import Offer
from gateway.lanes.pool.backend import Backend, Origin
from gateway.lanes.pool.probe import Prober
from gateway.lanes.pool.stored import PoolStore
from gateway.settings.pool import PoolBackend, PoolSettings
from gateway.storage import keeping
from runtime.errors import NotFound, RequestInvalid
from runtime.http.client import Client

log = structlog.get_logger(__name__)

BACKENDS_MAX = 256


@dataclass(slots=True)
class _Member:
    backend: Backend
    prober: Prober
    task: asyncio.Task[None] | None = None


class Pool:
    """Changed on one event loop. Without a `store`, added backends are lost at the end."""

    def __init__(
        self,
        settings: PoolSettings,
        client: Client,
        store: PoolStore | None = None,
        on_answer: Callable[[str, bool], None] = lambda _name, _was_down: None,
    ) -> None:
        """`on_answer` receives the name of each backend that answers a probe, and whether it was down before."""
        self._settings = settings
        self._client = client
        self._store = store
        self._on_answer = on_answer
        self._keeping = asyncio.Lock()
        self._members: dict[str, _Member] = {}
        self.version = 0
        """The number of changes of any backend's offers."""
        self._aliases: Aliases = settings.aliases
        for backend in settings.backends:
            self._members[backend.name] = self._member(backend, "settings")

    async def start(self) -> None:
        """Return when every backend has answered or timed out once."""
        if self._store:
            added, drained = await asyncio.to_thread(self._store.read)
            self._restore(added, drained)
        for member in self._members.values():
            self._watch(member)
        waiting = [asyncio.create_task(m.prober.asked_once.wait()) for m in self._members.values()]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=self._settings.probe_timeout_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def stop(self) -> None:
        tasks = [member.task for member in self._members.values() if member.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def backends(self) -> list[Backend]:
        return [member.backend for member in self._members.values()]

    def models(self) -> list[str]:
        """Return every name that callers may use, including aliases."""
        return sorted({name for member in self._members.values() for name in member.backend.names})

    def offers(self, model: str) -> list[Offer]:
        return [offer for member in self._members.values() if (offer := member.backend.offer(model))]

    @property
    def aliases(self) -> Aliases:
        """The aliases of the settings, overridden by those that operators set."""
        return self._aliases

    def set_aliases(self, aliases: Aliases) -> None:
        """Set aliases that override those of the settings."""
        self._aliases = dict(self._settings.aliases) | dict(aliases)
        for member in self._members.values():
            member.backend.call(self._aliases)

    def find(self, name: str) -> Backend:
        """Raises NotFound."""
        return self._find(name).backend

    def get(self, name: str) -> Backend | None:
        member = self._members.get(name)
        return member.backend if member else None

    def doubt(self, name: str) -> None:
        """Note a failed request: the backend is probed soon. Ignores a backend that was removed."""
        if member := self._members.get(name):
            member.prober.doubt()

    def loaded(self, offer: Offer, seconds: float) -> None:
        """Record a model's load time, and probe soon which other models are loaded."""
        if member := self._members.get(offer.backend):
            member.backend.loaded(offer.served_as or offer.model, seconds)
            member.prober.doubt()

    async def add(self, backend: PoolBackend) -> Backend:
        """Add a backend, also across restarts. Return when it was probed once. Raises RequestInvalid."""
        self.refuse_adding(backend)
        member = self._member(backend, "added")
        self._members[backend.name] = member
        self._watch(member)
        try:
            await self._keep()
        except (RequestInvalid, StorageUnavailable):
            await self._take_out(backend.name)
            raise
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.probe_timeout_s):
                await member.prober.asked_once.wait()
        return member.backend

    def refuse_adding(self, backend: PoolBackend) -> None:
        """Check whether `add` would accept it. Raises RequestInvalid."""
        if backend.name in self._members:
            raise RequestInvalid(
                f"name: backend {backend.name} already exists; remove it first, or choose another name",
                param="name",
            )
        if len(self._members) >= BACKENDS_MAX:
            raise RequestInvalid(f"The pool has {BACKENDS_MAX} backends, the maximum.", param="name")

    async def remove(self, name: str) -> None:
        """Remove it now; running requests continue. Raises NotFound, RequestInvalid for one of the settings."""
        self.refuse_removing(name)
        await self._take_out(name)
        await self._keep()

    def refuse_removing(self, name: str) -> None:
        """Check whether `remove` would accept it. Raises NotFound and RequestInvalid."""
        if self.find(name).origin == "settings":
            raise RequestInvalid(
                f"name: {name} comes from the settings (pool.backends); remove it there, or drain it",
                param="name",
            )

    async def drain(self, name: str, *, draining: bool) -> Backend:
        """Raises NotFound."""
        backend = self.find(name)
        backend.drain(draining=draining)
        await self._keep()
        return backend

    def _note_change(self) -> None:
        self.version += 1

    def _find(self, name: str) -> _Member:
        member = self._members.get(name)
        if member is None:
            raise NotFound(f"Pool backend {name!r} not found. List backends with `millrace pool list`.")
        return member

    def _member(self, settings: PoolBackend, origin: Origin) -> _Member:
        backend = Backend(settings, self._aliases, origin, self._note_change)
        return _Member(backend, Prober(backend, self._settings, self._client, self._on_answer))

    async def _take_out(self, name: str) -> None:
        member = self._members.pop(name, None)
        self._note_change()
        if member and member.task:
            member.task.cancel()
            await asyncio.gather(member.task, return_exceptions=True)

    def _watch(self, member: _Member) -> None:
        name = member.backend.settings.name
        # The task outlives the request that added the backend, and does not log under that request's id.
        context = contextvars.Context()
        member.task = asyncio.create_task(member.prober.run(), name=f"pool probe {name}", context=context)

    def _restore(self, added: list[PoolBackend], drained: set[str]) -> None:
        for backend in added[:BACKENDS_MAX]:
            if backend.name in self._members:
                log.warning(
                    "pool backend not restored", backend=backend.name, reason="the settings have one so named"
                )
                continue
            self._members[backend.name] = self._member(backend, "added")
        for name in drained & self._members.keys():
            self._members[name].backend.drain(draining=True)

    async def _keep(self) -> None:
        if self._store is None:
            return
        # One writer at a time, so the last write has the latest state.
        async with self._keeping:
            backends = self.backends()
            added = [backend.settings for backend in backends if backend.origin == "added"]
            drained = [backend.settings.name for backend in backends if backend.is_draining]
            with keeping():
                await asyncio.to_thread(self._store.write, added, drained)

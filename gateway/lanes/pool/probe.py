"""Asking one backend again and again: how often, how long, and what its silence means."""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from gateway.lanes.pool.backend import Backend
from gateway.lanes.pool.kinds.base import Reader
from gateway.lanes.pool.kinds.catalogue import KINDS_OF_BACKEND
from gateway.lanes.pool.offers import Standing
from gateway.lanes.pool.queries import Asker
from gateway.lanes.pool.recognition import recognise
from gateway.lanes.pool.report import BackendReport, ProbeFailed
from gateway.settings.pool import PoolSettings
from runtime.http.client import Client

log = structlog.get_logger(__name__)

_FIRST_PAUSE_S = 0.5
# A backend at work changes faster than one that waits.
_BUSY_SHARE = 5
_BUSY_PAUSE_S_MIN = 1.0
_JITTER = 0.15
# A probe is several questions; together they may take this multiple of the timeout for one.
_QUESTIONS = 4
_TIMEOUTS_MAX = 2


@dataclass(slots=True)
class Prober:
    """Asks `backend` until its task is cancelled."""

    backend: Backend
    settings: PoolSettings
    client: Client
    on_answer: Callable[[str, bool], None] = lambda _name, _was_down: None
    """Gets the backend's name after each answer, and whether it was down before."""
    _reader: Reader | None = field(default=None, init=False)
    _misses: int = field(default=0, init=False)
    _doubted: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    asked_once: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def doubt(self) -> None:
        """Traffic failed there, or loaded a model: look soon."""
        self._doubted.set()

    async def run(self) -> None:
        while True:
            await self._probe()
            self.asked_once.set()
            await self._pause()

    async def _pause(self) -> None:
        report = self.backend.report
        is_busy = bool(report.running or report.queued)
        pause_s = pause_after(self._misses, self.settings.probe_s, is_busy=is_busy)
        # However loudly it is doubted, it is left alone for a moment.
        least_s = min(_FIRST_PAUSE_S, pause_s)
        await asyncio.sleep(least_s)
        try:
            async with asyncio.timeout((pause_s - least_s) * random.uniform(1 - _JITTER, 1 + _JITTER)):  # noqa: S311
                await self._doubted.wait()
        except TimeoutError:
            pass
        self._doubted.clear()

    async def _probe(self) -> None:
        """Never raises: whatever a backend answers, it is its standing alone that it costs."""
        backend = self.backend
        try:
            async with asyncio.timeout(self.settings.probe_timeout_s * _QUESTIONS):
                report = await self._read()
        except TimeoutError:
            news = self._missed(ProbeFailed("timeout", "takes too long to say what it has"))
        except ProbeFailed as failure:
            news = self._missed(failure)
        except Exception:
            log.exception("pool probe failed", backend=backend.settings.name)
            news = self._missed(ProbeFailed("strange", "could not be asked; the gateway's log says why"))
        else:
            self._misses = 0
            was_down = backend.probed.state == "down"
            news = backend.heard(report)
            self.on_answer(backend.settings.name, was_down)
        if news:
            standing = backend.standing
            log.info(
                "pool backend",
                backend=backend.settings.name,
                kind=backend.kind,
                state=standing.state,
                reason=standing.note,
            )

    async def _read(self) -> BackendReport:
        backend = self.backend
        asker = Asker(self.client, backend.settings.base_url, backend.headers, self.settings.probe_timeout_s)
        if self._reader is None:
            kind = backend.settings.kind
            backend.kind = await recognise(asker) if kind == "auto" else kind
            self._reader = KINDS_OF_BACKEND[backend.kind].reader()
        return await self._reader.read(asker)

    def _missed(self, failure: ProbeFailed) -> bool:
        """Whether that changes how the backend stands."""
        self._misses += 1
        backend = self.backend
        silent_s = time.monotonic() - backend.asked_s if backend.asked_s is not None else None
        if backend.settings.models and failure.problem == "strange":
            # Its owner knows what it serves; that it cannot list it says nothing against it.
            return backend.heard(BackendReport(warnings=(failure.note,)))
        facts = KINDS_OF_BACKEND.get(backend.kind)
        patience_s = self.settings.silence_s if facts and facts.hears_nothing else 0.0
        standing = judge(failure, self._misses, backend.probed, silent_s, patience_s)
        if standing.state == "down":
            self._reader = None  # Another server may come back at this address.
        elif patience_s and standing.state == "ready":
            self._misses = 0  # More questions would only queue up at a server that is too busy to read them.
        return backend.missed(standing)


def judge(
    failure: ProbeFailed, misses: int, before: Standing, silent_s: float | None, patience_s: float
) -> Standing:
    """The new standing of a backend after a failed probe; `before` is the old one.

    Silence alone proves nothing: a busy machine answers late, and one that `hears_nothing` does not answer while
    busy, which is tolerated for `patience_s`.
    """
    if failure.problem == "loading":
        return Standing("starting", failure.note)
    if failure.problem == "timeout" and before.state == "ready" and silent_s is not None:
        if silent_s < patience_s:
            return Standing("ready", "is at work and answers nothing else meanwhile")
        if misses < _TIMEOUTS_MAX:
            return before
    return Standing("down", failure.note)


def pause_after(misses: int, probe_s: float, *, is_busy: bool) -> float:
    """Return the seconds until the next probe.

    They are few after a first failure and double with each further one. A busy backend is probed often.
    """
    if misses:
        return min(probe_s, _FIRST_PAUSE_S * 2.0 ** min(misses - 1, 16))
    if is_busy:
        return min(probe_s, max(_BUSY_PAUSE_S_MIN, probe_s / _BUSY_SHARE))
    return probe_s

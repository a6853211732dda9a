"""Probes one backend repeatedly: interval, timeout, and the meaning of silence."""

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
from gateway.lanes.pool.recognition import recognize
from gateway.lanes.pool.report import BackendReport, ProbeFailed
from gateway.settings.pool import PoolSettings
from runtime.http.client import Client

log = structlog.get_logger(__name__)

_FIRST_PAUSE_S = 0.5
# A busy backend changes faster than an idle one.
_BUSY_SHARE = 5
_BUSY_PAUSE_S_MIN = 1.0
_JITTER = 0.15
# A probe has several queries; together they may take this multiple of one query's timeout.
_QUESTIONS = 4
_TIMEOUTS_MAX = 2


@dataclass(slots=True)
class Prober:
    """Probes `backend` until its task is cancelled."""

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
        """Probe soon, because a request failed there or loaded a model."""
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
        # Even after many failures, wait a moment between probes.
        least_s = min(_FIRST_PAUSE_S, pause_s)
        await asyncio.sleep(least_s)
        try:
            async with asyncio.timeout((pause_s - least_s) * random.uniform(1 - _JITTER, 1 + _JITTER)):  # noqa: S311
                await self._doubted.wait()
        except TimeoutError:
            pass
        self._doubted.clear()

    async def _probe(self) -> None:
        """Probe once. Never raises: a bad answer only changes the backend's state."""
        backend = self.backend
        try:
            async with asyncio.timeout(self.settings.probe_timeout_s * _QUESTIONS):
                report = await self._read()
        except TimeoutError:
            news = self._missed(ProbeFailed("timeout", "takes too long to list its models"))
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
            backend.kind = await recognize(asker) if kind == "auto" else kind
            self._reader = KINDS_OF_BACKEND[backend.kind].reader()
        return await self._reader.read(asker)

    def _missed(self, failure: ProbeFailed) -> bool:
        """Note the failure; return whether the backend's state changed."""
        self._misses += 1
        backend = self.backend
        silent_s = time.monotonic() - backend.asked_s if backend.asked_s is not None else None
        if backend.settings.models and failure.problem == "strange":
            # The owner set its models, so a missing list is no failure.
            return backend.heard(BackendReport(warnings=(failure.note,)))
        facts = KINDS_OF_BACKEND.get(backend.kind)
        patience_s = self.settings.silence_s if facts and facts.hears_nothing else 0.0
        standing = judge(failure, self._misses, backend.probed, silent_s, patience_s)
        if standing.state == "down":
            self._reader = None  # Another server may come back at this address.
        elif patience_s and standing.state == "ready":
            self._misses = 0  # Further queries would only queue at a server that is too busy to read them.
        return backend.missed(standing)


def judge(
    failure: ProbeFailed, misses: int, before: Standing, silent_s: float | None, patience_s: float
) -> Standing:
    """Return a backend's state after a failed probe; `before` is the previous one.

    Silence alone proves nothing: a busy machine answers late, and one that `hears_nothing` does not answer while
    busy, which is tolerated for `patience_s`.
    """
    if failure.problem == "loading":
        return Standing("starting", failure.note)
    if failure.problem == "timeout" and before.state == "ready" and silent_s is not None:
        if silent_s < patience_s:
            return Standing("ready", "is busy and answers nothing else meanwhile")
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

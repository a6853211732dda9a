"""What the applications of all workers do alike: bound requests, drop those whose client is gone, tell their health."""

import asyncio
import os
import time
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import psutil

from runtime.workers.errors import Refusal
from runtime.workers.exchange import Exchange, HungUp, until_hung_up
from runtime.workers.health import Health
from runtime.workers.logbook import note

PLACE_S = 0.5
Kind = Literal["chat", "completion"]
KINDS: dict[str, Kind] = {"/v1/chat/completions": "chat", "/v1/completions": "completion"}


class RequestLimits(Protocol):
    """How many requests a worker serves at once, and how large and slow their bodies may be, in bytes and seconds."""

    @property
    def requests_in_flight_max(self) -> int: ...
    @property
    def body_bytes_max(self) -> int: ...
    @property
    def body_s(self) -> float: ...


@dataclass
class WorkerApp:
    """Counts and bounds a worker's requests. `busy` and `failed` are its own errors: their status and code."""

    name: ClassVar[str]
    busy: ClassVar[tuple[int, str]]
    failed: ClassVar[tuple[int, str]]
    requests: int = field(default=0, init=False)
    in_flight: int = field(default=0, init=False)
    _started: float = field(default_factory=time.monotonic, init=False)
    _process: psutil.Process = field(default_factory=psutil.Process, init=False)

    def __post_init__(self) -> None:
        self._places = asyncio.Semaphore(self.limits.requests_in_flight_max)

    @property
    def limits(self) -> RequestLimits:
        raise NotImplementedError

    def health(self) -> Health:
        """Return the worker's report about itself."""
        return Health(
            pid=os.getpid(),
            requests=self.requests,
            in_flight=self.in_flight,
            rss_bytes=self._process.memory_info().rss,
            age_s=time.monotonic() - self._started,
            cpu_s=time.process_time(),
        )

    async def admit(self, exchange: Exchange, serve: Callable[[bytes], Coroutine[None, None, None]]) -> None:
        """Read the body and `serve` it. Every failure becomes an error answer, or the last event of a stream."""
        most = self.limits.requests_in_flight_max
        try:
            # A client may send its next request a moment before its last one is cleaned up.
            async with asyncio.timeout(PLACE_S):
                await self._places.acquire()
        except TimeoutError:
            busy = f"The {self.name} is at its limit of {most} requests. Try again shortly."
            await exchange.refuse(Refusal(*self.busy, busy, retry_after="1"))
            return
        self.requests += 1
        self.in_flight += 1
        try:
            body = await exchange.body(self.limits.body_bytes_max, self.limits.body_s)
            await until_hung_up(exchange, self._serve(exchange, serve(body)))
        except Refusal as refusal:
            await exchange.refuse(refusal)
        except HungUp:
            return
        finally:
            self.in_flight -= 1
            self._places.release()

    async def _serve(self, exchange: Exchange, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except Refusal as refusal:
            cause = type(refusal.__cause__).__name__ if refusal.__cause__ else None
            note("refused", status=refusal.status, code=refusal.code, model=refusal.model, cause=cause)
            await exchange.refuse(refusal)
        except Exception as error:  # noqa: BLE001  # a bug here must end this request only
            place = traceback.extract_tb(error.__traceback__)[-1]
            note("failed", error=type(error).__name__, place=f"{place.filename}:{place.lineno}")
            await exchange.refuse(Refusal(*self.failed, f"The {self.name} had an internal error."))

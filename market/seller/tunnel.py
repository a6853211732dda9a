"""The buyers' way in: keep cloudflared running, and publish its address for as long as it leads here.

A seller opens no port. cloudflared connects out to Cloudflare, whose public name leads to our port on loopback. A
quick tunnel needs no account and gets another name at every start; a named one keeps its name.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

import structlog

from market.errors import ListingInvalid
from market.protocol.listings.endpoint import check_endpoint
from market.seller.reach import Reach, Reaches
from market.seller.tunnel_process import (
    Protocol,
    TunnelFailed,
    TunnelOptions,
    TunnelProcess,
    find_cloudflared,
    launch,
    version_of,
)

log = structlog.get_logger(__name__)

Probe: TypeAlias = Callable[[str], Awaitable[bool]]
"""Return whether we answer at an address, asked from outside."""


@dataclass(frozen=True, slots=True)
class TunnelPace:
    """When a tunnel counts as ready, unhealthy or failed."""

    ready_s: float = 45.0
    """Seconds a start may take until Cloudflare is connected and an address is known."""
    first_probe_after_s: float = 3.0
    """A name looked up before it exists stays unknown to resolvers, often for minutes."""
    reached_s: float = 240.0
    """Seconds it may take from there until the address leads to us."""
    look_every_s: float = 2.0
    answer_s: float = 5.0
    misses_max: int = 3
    """After this many unhealthy checks in a row, or failed probes, the address is withdrawn."""
    lost_s: float = 90.0
    """A tunnel without Cloudflare for this long is restarted; until then it retries by itself."""
    probe_every_s: float = 60.0
    backoff_first_s: float = 1.0
    backoff_max_s: float = 60.0
    healthy_after_s: float = 60.0
    """If a tunnel that was ready for this long ends, the count of failures starts over."""
    failures_per_protocol: int = 3
    """After this many failures in a row the other protocol is tried: QUIC needs UDP, which some networks block."""
    grace_s: float = 30.0

    def backoff_s(self, failures: int) -> float:
        """Return 1, 2, 4 ... seconds, reduced by up to half, so that sellers do not all return at once."""
        longest_s = min(self.backoff_first_s * 2.0 ** min(failures - 1, 16), self.backoff_max_s)
        return longest_s * random.uniform(0.5, 1.0)  # noqa: S311 - spread, not secrecy


class Tunnel:
    """Keeps one cloudflared running, and tells `reaches` its address. The owner runs `run` as a task."""

    def __init__(
        self,
        options: TunnelOptions,
        reaches: Reaches,
        pace: TunnelPace | None = None,
        probe: Probe | None = None,
    ) -> None:
        self._options = options
        self._pace = pace or TunnelPace()
        self._probe = probe
        self._protocol: Protocol = "auto"
        self._version = ""
        self.reaches = reaches
        self._ready_since_s: float | None = None
        self.keeper_pid: int | None = None

    async def run(self) -> None:
        """Run until cancelled: no failure of cloudflared ends this, because it may be fixed at any time."""
        failures = 0
        while True:
            self._ready_since_s = None
            try:
                await self._live()
            except TunnelFailed as error:
                failures = 1 if self._ready_for_s() >= self._pace.healthy_after_s else failures + 1
                log.warning("tunnel.failed", why=str(error), failures=failures, protocol=self._protocol)
                self._tell(None, str(error))
            if not self._ready_for_s() and failures % self._pace.failures_per_protocol == 0:
                self._protocol = "http2" if self._protocol == "auto" else "auto"
            await asyncio.sleep(self._pace.backoff_s(failures))

    def _ready_for_s(self) -> float:
        """Return how long the current or last cloudflared has been ready, in seconds; 0 if it never was."""
        return 0.0 if self._ready_since_s is None else time.monotonic() - self._ready_since_s

    async def _live(self) -> None:
        """Run one cloudflared from start to end; raises TunnelFailed, whatever ended it."""
        if not self._version:
            with suppress(OSError):
                self._version = await version_of(find_cloudflared(self._options.cloudflared))
        process = await launch(
            self._options, self._protocol, grace_s=self._pace.grace_s, answer_s=self._pace.answer_s
        )
        self.keeper_pid = process.keeper_pid
        try:
            address = await self._open(process)
            self._ready_since_s = time.monotonic()
            log.info("tunnel.open", address=address, version=self._version, protocol=self._protocol)
            self._tell(address)
            await self._watch(process, address)
        except TunnelFailed:
            raise
        except BaseException:
            # No other attempt follows, and ending cloudflared takes a while.
            self._tell(None, "the tunnel is being closed")
            raise
        finally:
            await process.stop(self._pace.grace_s)
            self.keeper_pid = None

    async def _open(self, process: TunnelProcess) -> str:
        """Return the address once it leads to us."""
        try:
            async with asyncio.timeout(self._pace.ready_s):
                while await process.health() != "ready":
                    await self._pause(process)
                while not (address := self._options.public_url or await process.quick_url()):
                    await self._pause(process)
        except TimeoutError:
            raise TunnelFailed(
                f"cloudflared did not connect to Cloudflare within {self._pace.ready_s:g} s."
                " Check that the firewall allows port 7844, TCP and UDP."
            ) from None
        self._check(address)
        await self._reach(process, address)
        return address

    async def _reach(self, process: TunnelProcess, address: str) -> None:
        """Return once we are reachable at the address. Raises TunnelFailed."""
        await self._pause(process, self._pace.first_probe_after_s)
        try:
            async with asyncio.timeout(self._pace.reached_s):
                while not await self._is_ours(address):
                    await self._pause(process)
        except TimeoutError:
            raise TunnelFailed(f"{address} does not lead here. Check that it is the tunnel's own name.") from None

    def _check(self, address: str) -> None:
        try:
            check_endpoint(address, allows_loopback=self._options.allows_loopback)
        except ListingInvalid as error:
            raise TunnelFailed(f"no buyer would use the address {address[:200]}: {error}") from None

    async def _watch(self, process: TunnelProcess, address: str) -> None:
        """Watch until a restart is needed; withdraw and republish the address with its health."""
        misses, since_s, probed_s = 0, time.monotonic(), time.monotonic()
        strangers = 0
        while True:
            await self._pause(process)
            health = await process.health()
            if health == "ready":
                misses, since_s = 0, time.monotonic()
            else:
                misses += 1
            if time.monotonic() - probed_s >= self._pace.probe_every_s:
                probed_s = time.monotonic()
                strangers = 0 if await self._is_ours(address) else strangers + 1
            if strangers >= self._pace.misses_max:
                raise TunnelFailed("the address of the tunnel does not lead here any more")
            if misses >= self._pace.misses_max and health == "silent":
                raise TunnelFailed("cloudflared does not answer")
            if time.monotonic() - since_s >= self._pace.lost_s:
                raise TunnelFailed("cloudflared lost its connection to Cloudflare and did not reconnect")
            if misses >= self._pace.misses_max:
                self._tell(None, "cloudflared lost its connection to Cloudflare and is reconnecting")
            elif not misses:
                self._tell(address)

    async def _is_ours(self, address: str) -> bool:
        return self._probe is None or await self._probe(address)

    async def _pause(self, process: TunnelProcess, pause_s: float | None = None) -> None:
        """Wait until the next check; raises TunnelFailed if cloudflared has exited."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pace.look_every_s if pause_s is None else pause_s):
                await process.exited()
        if process.has_exited:
            raise TunnelFailed(f"cloudflared: {await process.why_it_ended()}")

    def _tell(self, address: str | None, why: str = "") -> None:
        self.reaches.tell(Reach(address is not None, address, why))

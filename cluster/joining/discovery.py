"""Discovery by multicast DNS in one network. Its answers are hints; certificates decide.

The controller announces `_millrace._tcp` with its port and the beginning of its authority's fingerprint. Any
machine may announce anything. A node tries what it finds and trusts only a peer with a certificate of the pinned
authority.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

import structlog
from zeroconf import Error as ZeroconfError
from zeroconf import InterfaceChoice, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from cluster import wire
from cluster.trust.addresses import Target, own_addresses

log = structlog.get_logger(__name__)

SERVICE = "_millrace._tcp.local."
FINGERPRINT_DIGITS = 16
LOOK_S = 5.0

# Limits against a peer that fills the network with announcements.
_TARGETS_MAX = 64
_ADDRESSES_MAX = 8
_ASK_MS = 1500
_LOOK_AGAIN_S = 30.0
_FAREWELL_S = 3.0

Interfaces = Sequence[str] | InterfaceChoice
ALL_INTERFACES = InterfaceChoice.All


@dataclass(slots=True)
class Announcement:
    """Announces where the controller listens, as long as `run` runs. `host` is its listening address."""

    name: str
    host: str
    port: int
    fingerprint: str
    interfaces: Interfaces = ALL_INTERFACES
    _zeroconf: AsyncZeroconf | None = field(default=None, init=False)
    _shown: tuple[str, ...] = field(default=(), init=False)
    _failure: str = field(default="", init=False)

    async def run(self) -> None:
        """Announce until cancelled: again whenever this machine's addresses change, and after a failure."""
        try:
            while True:
                addresses = own_addresses(self.host)
                if addresses != self._shown:
                    await self._withdraw()
                    self._shown = addresses if addresses and await self._announce(addresses) else ()
                await asyncio.sleep(_LOOK_AGAIN_S)
        finally:
            await self._withdraw()

    async def _announce(self, addresses: tuple[str, ...]) -> bool:
        """Announce these addresses. Return whether that succeeded."""
        try:
            self._zeroconf = AsyncZeroconf(interfaces=self.interfaces)
            await (await self._zeroconf.async_register_service(self._service(addresses)))
        except (OSError, ZeroconfError) as error:
            await self._withdraw()
            reason = str(error) or type(error).__name__
            if reason != self._failure:  # Log each reason once, although every retry fails for it.
                remedy = "other machines join with --controller HOST:PORT"
                log.warning("cluster not announced", reason=reason, again_in_s=_LOOK_AGAIN_S, remedy=remedy)
            self._failure = reason
            return False
        self._failure = ""
        log.info("cluster announced", addresses=addresses, port=self.port)
        return True

    def _service(self, addresses: tuple[str, ...]) -> AsyncServiceInfo:
        digits = self.fingerprint[:FINGERPRINT_DIGITS]
        # Two controllers with the same name, or one that restarted quickly, must not take each other's label.
        label = f"{self.name.partition('.')[0][:40]}-{digits[:8]}-{self.port}"
        return AsyncServiceInfo(
            SERVICE,
            f"{label}.{SERVICE}",
            port=self.port,
            parsed_addresses=list(addresses),
            properties={"ca": digits, "protocol": str(wire.PROTOCOL_VERSION)},
            server=f"{label}.local.",
        )

    async def _withdraw(self) -> None:
        zeroconf, self._zeroconf = self._zeroconf, None
        if zeroconf:
            with contextlib.suppress(OSError, ZeroconfError):
                async with asyncio.timeout(_FAREWELL_S):
                    await zeroconf.async_unregister_all_services()
            with contextlib.suppress(OSError, ZeroconfError):
                async with asyncio.timeout(_FAREWELL_S):
                    await zeroconf.async_close()


async def look_for(
    fingerprint: str, within_s: float = LOOK_S, interfaces: Interfaces = ALL_INTERFACES
) -> AsyncGenerator[Target]:
    """Yield addresses that claim to be the controller with this authority fingerprint, as they answer.

    Nothing about them is proven. It ends after `within_s` seconds, or at once if there is no multicast.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + within_s
    names: asyncio.Queue[str] = asyncio.Queue(_TARGETS_MAX)

    def heard(
        zeroconf: Zeroconf,  # noqa: ARG001 - the library names its arguments
        service_type: str,  # noqa: ARG001
        name: str,
        state_change: ServiceStateChange,
    ) -> None:
        if state_change is not ServiceStateChange.Removed:
            with contextlib.suppress(asyncio.QueueFull):
                names.put_nowait(name)

    try:
        zeroconf = AsyncZeroconf(interfaces=interfaces)
    except OSError as error:
        log.warning("multicast not available", reason=str(error))
        return
    browser = AsyncServiceBrowser(zeroconf.zeroconf, [SERVICE], handlers=[heard])
    targets: set[Target] = set()
    try:
        with contextlib.suppress(TimeoutError):
            while len(targets) < _TARGETS_MAX:
                async with asyncio.timeout_at(deadline_s):
                    resolved = await _resolve(zeroconf.zeroconf, await names.get(), fingerprint)
                for target in resolved:
                    if target not in targets:
                        targets.add(target)
                        yield target
    finally:
        await browser.async_cancel()
        await zeroconf.async_close()


async def _resolve(zeroconf: Zeroconf, name: str, fingerprint: str) -> list[Target]:
    service = AsyncServiceInfo(SERVICE, name)
    if not await service.async_request(zeroconf, _ASK_MS):
        return []
    claimed = (service.properties.get(b"ca") or b"").decode("ascii", "replace")
    if len(claimed) != FINGERPRINT_DIGITS or not fingerprint.startswith(claimed):
        return []
    addresses = service.parsed_scoped_addresses()[:_ADDRESSES_MAX]
    # Link-local addresses come last: they need the right interface.
    ordered = sorted(addresses, key=lambda address: address.startswith("fe80"))
    return [Target(address, service.port or 0) for address in ordered if service.port]

"""Hosts that announce themselves by mDNS, as places to scan. An announcement is a hint and proves nothing.

No known server announces its HTTP interface: Ollama has open requests for it, and exo announces libp2p, on another
port. Two announcements exist. Millrace gateways announce, for nodes, the port next to their HTTP port; and users
announce `_ollama._tcp` by hand (Avahi).
"""

import asyncio
import contextlib

import structlog
from zeroconf import Error as ZeroconfError
from zeroconf import ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from cluster.joining.discovery import ALL_INTERFACES, SERVICE, Interfaces
from gateway.lanes.pool.scan import ScanTarget
from gateway.settings.pool import is_own_host

log = structlog.get_logger(__name__)

_BY_HAND = "_ollama._tcp.local."
_GATEWAY_PORT = 8400
_LOOK_S = 3.0
_ASK_MS = 1000
_SERVICES_MAX = 64
_ADDRESSES_MAX = 4


async def announced(within_s: float = _LOOK_S, interfaces: Interfaces = ALL_INTERFACES) -> list[ScanTarget]:
    """Return places in own networks that are announced within that time, in seconds; none without multicast."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + within_s
    heard: asyncio.Queue[tuple[str, str]] = asyncio.Queue(_SERVICES_MAX)

    def note_change(
        zeroconf: Zeroconf,  # noqa: ARG001 - the library names its arguments
        service_type: str,
        name: str,
        state_change: ServiceStateChange,
    ) -> None:
        if state_change is not ServiceStateChange.Removed:
            with contextlib.suppress(asyncio.QueueFull):
                heard.put_nowait((service_type, name))

    try:
        zeroconf = AsyncZeroconf(interfaces=interfaces)
    except (OSError, ZeroconfError) as error:
        log.warning("multicast not available", reason=str(error))
        return []
    browser = AsyncServiceBrowser(zeroconf.zeroconf, [SERVICE, _BY_HAND], handlers=[note_change])
    found: dict[ScanTarget, None] = {}
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline_s):
                for _ in range(_SERVICES_MAX):
                    found |= dict.fromkeys(await _places(zeroconf.zeroconf, *await heard.get()))
    finally:
        await browser.async_cancel()
        await zeroconf.async_close()
    return list(found)


async def _places(zeroconf: Zeroconf, service_type: str, name: str) -> list[ScanTarget]:
    service = AsyncServiceInfo(service_type, name)
    if not await service.async_request(zeroconf, _ASK_MS) or not service.port:
        return []
    # The nodes' port is the HTTP port plus one, unless that was taken.
    ports = [service.port] if service_type == _BY_HAND else [service.port - 1, _GATEWAY_PORT]
    hosts = [host for host in service.parsed_addresses()[:_ADDRESSES_MAX] if is_own_host(host)]
    return [ScanTarget(host, port) for host in hosts for port in dict.fromkeys(ports) if 0 < port < 2**16]

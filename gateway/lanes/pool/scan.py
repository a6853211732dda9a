"""Scans for model servers, only on request and only in permitted networks: a few ports of some hosts."""

import asyncio
import contextlib
import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.lanes.pool.kinds.catalogue import KINDS_OF_BACKEND, PORTS
from gateway.lanes.pool.queries import Asker
from gateway.lanes.pool.recognition import recognize
from gateway.lanes.pool.report import ProbeFailed
from gateway.settings.pool import BackendKind, PoolBackend
from runtime.errors import RequestInvalid
from runtime.http.client import Client

HOSTS_MAX = 64
ADDRESSES_MAX = 256
PORTS_MAX = 64
# The maximum number of places to scan while a user waits for the answer.
PLACES_MAX = 4096

_CONNECT_S = 0.7
_ASK_S = 3.0
_AT_ONCE = 128
_RESOLVE_S = 3.0
_ADDRESSES_OF_NAME_MAX = 4
_HOST_AND_PORT = re.compile(r"(?P<host>\[[^\[\]]+\]|[^:/\[\]]+):(?P<port>[0-9]{1,5})")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._@-]+")


@dataclass(frozen=True, slots=True)
class Found:
    """A server that answers, and the entry that adds it to the pool."""

    kind: BackendKind
    entry: PoolBackend
    models: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class ScanTarget:
    """Where to look. `addresses` are the resolved addresses of a host name.

    The name is not resolved again: a second answer might differ from the addresses that were checked."""

    host: str
    port: int
    addresses: tuple[str, ...] = ()

    @property
    def base_url(self) -> str:
        return f"http://[{self.host}]:{self.port}/v1" if ":" in self.host else f"http://{self.host}:{self.port}/v1"

    @property
    def doors(self) -> list["ScanTarget"]:
        """Return a target for each of its addresses."""
        return [ScanTarget(address, self.port) for address in self.addresses or (self.host,)]


async def places(hosts: Iterable[str], ports: Iterable[int], *, public: bool) -> list[ScanTarget]:
    """Return every host with every port.

    Raises RequestInvalid for an invalid host, too many targets, or a network that is not permitted.
    """
    texts = list(dict.fromkeys(hosts))
    if not 0 < len(texts) <= HOSTS_MAX:
        raise RequestInvalid(f"hosts: name 1 to {HOSTS_MAX} hosts or networks", param="hosts")
    chosen = tuple(dict.fromkeys(ports)) or PORTS
    known = [
        (found, at)
        for host, at in (_with_ports(text, chosen) for text in texts)
        for found in await _known(host, public=public)
    ]
    if len(known) > ADDRESSES_MAX:
        raise RequestInvalid(
            f"hosts: {len(known)} addresses are more than {ADDRESSES_MAX}; scan smaller networks", param="hosts"
        )
    found = list(
        dict.fromkeys(ScanTarget(host, port, addresses) for (host, addresses), at in known for port in at)
    )
    if len(found) > PLACES_MAX:
        text = f"ports: {len(found)} ports of all hosts together are more than {PLACES_MAX}; scan in parts"
        raise RequestInvalid(text, param="ports")
    return found


def _with_ports(text: str, ports: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Return a host with its ports to scan: HOST:PORT and [V6]:PORT name their own."""
    named = _HOST_AND_PORT.fullmatch(text)
    if named is None:
        return text, ports
    port = int(named["port"])
    if not 0 < port < 2**16:
        raise RequestInvalid(f"hosts: the port of {text[:100]} must be 1 to 65535", param="hosts")
    return named["host"].strip("[]"), (port,)


async def _known(host: str, *, public: bool) -> list[tuple[str, tuple[str, ...]]]:
    """Return a name with its addresses, or every address of a network in CIDR notation, if all are permitted."""
    with contextlib.suppress(ValueError):
        network = ipaddress.ip_network(host, strict=False)
        if network.num_addresses > ADDRESSES_MAX:
            raise RequestInvalid(
                f"hosts: {host} has {network.num_addresses} addresses; at most {ADDRESSES_MAX} can be scanned at once",
                param="hosts",
            )
        found = [str(address) for address in network.hosts()] or [str(network.network_address)]
        for address in (found[0], found[-1]):
            _admit(host, address, public=public)
        return [(address, ()) for address in found]
    addresses = await _resolve(host)
    for address in addresses:
        _admit(host, address, public=public)
    return [(host, addresses[:_ADDRESSES_OF_NAME_MAX])]


async def _resolve(host: str) -> tuple[str, ...]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_RESOLVE_S):
            entries = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError):
        raise RequestInvalid(f"hosts: {host[:100]!r} cannot be resolved", param="hosts") from None
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in entries))


def _admit(host: str, address: str, *, public: bool) -> None:
    """Refuse addresses outside of own networks: other networks and a cloud's metadata must not be scanned."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if found.is_multicast or found.is_unspecified or (found.is_reserved and not found.is_loopback):
        raise RequestInvalid(f"hosts: {host} is not a machine's address", param="hosts")
    if not public and (found.is_global or (found.is_link_local and found.version == 4)):
        raise RequestInvalid(
            f"hosts: {host} is not in a private network; to scan it, set `public` (--public)",
            param="hosts",
        )


async def scan(client: Client, targets: Iterable[ScanTarget]) -> list[Found]:
    """Return the targets that answer like a model server, in the order of the request."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def look(target: ScanTarget) -> Found | None:
        async with gate:
            return await _look(client, target)

    found = await asyncio.gather(*(look(target) for target in targets))
    return [one for one in found if one]


async def _look(client: Client, target: ScanTarget) -> Found | None:
    answering = await _open_file_server(target)
    if answering is None:
        return None
    asker = Asker(client, answering.base_url, {}, _ASK_S)
    try:
        async with asyncio.timeout(_ASK_S * 2):
            kind = await recognize(asker)
    except (ProbeFailed, TimeoutError):
        return None
    models, note = await _models(asker, kind)
    label = _NOT_IN_NAMES.sub("-", f"{kind}-{target.host}-{target.port}")[:80]
    entry = PoolBackend(name=label, base_url=target.base_url, kind=kind)
    return Found(kind, entry, models, note)


async def _open_file_server(target: ScanTarget) -> ScanTarget | None:
    """Return the first of its addresses where a server listens."""
    for answering in target.doors:
        if await _listens(answering):
            return answering
    return None


async def _listens(target: ScanTarget) -> bool:
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(target.host, target.port)
    except (OSError, TimeoutError, UnicodeError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


async def _models(asker: Asker, kind: BackendKind) -> tuple[tuple[str, ...], str]:
    """Return the models that it would offer, and the reason if it offers none and states one."""
    try:
        async with asyncio.timeout(_ASK_S * 2):
            report = await KINDS_OF_BACKEND[kind].reader().read(asker)
    except ProbeFailed as failure:
        return (), failure.note
    except TimeoutError:
        return (), "takes too long to list its models"
    return tuple(model.name for model in report.models), ""

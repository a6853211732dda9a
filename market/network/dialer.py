"""Connect to untrusted names: resolve, check every address, and connect only to the checked ones.

Because we connect to the address that was checked, a name that resolves differently a moment later gains nothing.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpcore

from market.network.addresses import is_public
from market.network.errors import Unreachable

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Resolve a name and a port to addresses. Raises OSError."""

ADDRESSES_MAX = 4
_LOOKUPS_MAX = 4


class SystemResolver:
    """The system's resolver in its own threads, so that nothing else waits if it hangs."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_LOOKUPS_MAX, thread_name_prefix="name lookups")

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, _look_up, host, port)
        return [str(sockaddr[0]) for *_, sockaddr in found]

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str, port: int) -> Sequence[tuple[Any, ...]]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


class CheckedDialer(httpcore.AsyncNetworkBackend):
    """Connect to public names, and to any host and port for which `is_ours` returns true."""

    def __init__(
        self,
        resolve: Resolve,
        is_ours: Callable[[str, int], bool],
        network: httpcore.AsyncNetworkBackend | None = None,
    ) -> None:
        self._resolve = resolve
        self._is_ours = is_ours
        self._inner = network or httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address of `host` that answers.

        `timeout` is in seconds: for finding the name, and again for all addresses together. Raises Unreachable if
        the name is not found in time.
        """
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._addresses(host, port)
        except TimeoutError:
            raise Unreachable(f"{host} was not found in {timeout:g} s", is_unsent=True) from None
        share_s = timeout and timeout / len(addresses)
        for n, address in enumerate(addresses, 1):
            try:
                return await self._inner.connect_tcp(address, port, share_s, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if n == len(addresses):
                    raise
        raise AssertionError("there is at least one address")

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        try:
            found = list(dict.fromkeys(await self._resolve(host, port)))
        except (OSError, UnicodeError):
            raise Unreachable(f"{host} cannot be resolved", is_unsent=True) from None
        if not found:
            raise Unreachable(f"{host} has no address", is_unsent=True)
        # One address that is not public rules out the name: such answers are suspicious.
        if not self._is_ours(host, port) and not all(map(is_public, found)):
            raise Unreachable(f"{host} resolves to an address that is not public", is_unsent=True)
        return found[:ADDRESSES_MAX]

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)

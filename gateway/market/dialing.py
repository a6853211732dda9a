"""Connections to strangers: a name is looked up, every address of it is checked, and only those are connected to.

What is connected to is the address that was checked, so that a name which stands for another one a moment later
gains nothing.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpcore

from gateway.market.addresses import is_public
from gateway.market.errors import Unreachable

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""From a name and a port to its addresses. Raises OSError."""

ADDRESSES_MAX = 4
_LOOKUPS_MAX = 4


class SystemResolver:
    """The system's resolver in threads of its own: where it hangs, nothing else waits for them."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_LOOKUPS_MAX, thread_name_prefix="names of strangers")

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, _look_up, host, port)
        return [str(sockaddr[0]) for *_, sockaddr in found]

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str, port: int) -> Sequence[tuple[Any, ...]]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


class CheckedDialer(httpcore.AsyncNetworkBackend):
    """Connects to names of the public internet, and to what `is_ours` says yes to, whatever it stands for."""

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
            raise Unreachable(f"{host} is no name that is known", is_unsent=True) from None
        if not found:
            raise Unreachable(f"{host} has no address", is_unsent=True)
        # One that is not public condemns the name: who gives such answers is after something else.
        if not self._is_ours(host, port) and not all(map(is_public, found)):
            raise Unreachable(f"{host} stands for an address that is not public", is_unsent=True)
        return found[:ADDRESSES_MAX]

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)

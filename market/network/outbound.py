"""HTTP to untrusted servers, whose addresses come from listings and which may answer anything.

No redirects, cookies, environment proxies or decompression. TLS is verified against the name. Connections are
pooled per name. This uses httpcore, httpx's own transport, without what httpx adds to it.
"""

import asyncio
import functools
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Generator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import NamedTuple, cast

import httpcore

from market.errors import ListingInvalid
from market.network.dialer import CheckedDialer, Resolve, SystemResolver
from market.network.errors import Unreachable
from market.protocol.listings.endpoint import check_endpoint

__all__ = ["Outbound", "OutboundReply", "Streamed", "Unreachable"]

CONNECTIONS_MAX = 128
_IDLE_MAX = 32
_IDLE_S = 30.0
_RETRY_S_MAX = 3600
# URLs without user names, fragments, backslashes and spaces, on which URL parsers disagree.
_URL = re.compile(
    r"(https?)://([a-z0-9.-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::([0-9]{1,5}))?(?:/[!\"$-\[\]-~]{0,4000})?"
)
_PORTS = {"https": 443, "http": 80}


@functools.cache
def _system_trust() -> ssl.SSLContext:
    """Return a TLS context with the certificate authorities that the system trusts, which takes 50 ms to read."""
    return ssl.create_default_context()


@dataclass(frozen=True, slots=True)
class OutboundReply:
    """A complete answer. `retry_after_s` is what the server asks for, at most an hour."""

    status: int
    body: bytes
    retry_after_s: int | None = None


@dataclass(frozen=True, slots=True)
class Streamed:
    """The status, and the body as it arrives. Reading raises `Unreachable`."""

    status: int
    events: AsyncIterator[bytes]
    retry_after_s: int | None = None


class Outbound:
    """Ask public names over https. Belongs to one event loop; close it with `aclose`.

    Args:
        allows_loopback: also allow http://127.0.0.1:port, for trials on one machine.
        named: addresses named by this gateway's owner, such as a partner's `http://10.0.0.7:8000`; they may be
            private and without TLS.
        resolve, network: replace the system's resolver and sockets.
        trust: trusted certificates, instead of the system's list.

    Raises:
        Unreachable: one of `named` is not an address.
    """

    def __init__(
        self,
        allows_loopback: bool,
        *,
        named: Collection[str] = (),
        resolve: Resolve | None = None,
        network: httpcore.AsyncNetworkBackend | None = None,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self._allows_loopback = allows_loopback
        self._ours = frozenset(map(_origin, named))
        self._system = SystemResolver()
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=trust or _system_trust(),
            max_connections=CONNECTIONS_MAX,
            max_keepalive_connections=_IDLE_MAX,
            keepalive_expiry=_IDLE_S,
            network_backend=CheckedDialer(resolve or self._system, self._may_be_private, network),
        )

    async def aclose(self) -> None:
        await self._pool.aclose()
        self._system.close()

    async def __aenter__(self) -> "Outbound":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def ask(
        self,
        url: str,
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
        bytes_max: int = 2**20,
    ) -> OutboundReply:
        """POST the body, or GET if it is None, and read the whole answer. Redirects are not followed.

        Raises:
            Unreachable: no complete answer of at most `bytes_max` bytes came within `timeout_s`.
        """
        whole = bytearray()
        with _in_our_words(url):
            async with (
                asyncio.timeout(timeout_s),
                self._opened(url, body, headers, timeout_s) as response,
                aclosing(_body(response)) as pieces,
            ):
                async for piece in pieces:
                    whole += piece
                    if len(whole) > bytes_max:
                        raise Unreachable(f"{url} answered with more than {bytes_max} bytes")
        return OutboundReply(response.status, bytes(whole), _retry_after_s(response))

    @asynccontextmanager
    async def stream(
        self,
        url: str,
        body: bytes | None,
        *,
        headers: Mapping[str, str] | None = None,
        first_byte_s: float = 20.0,
        gap_s: float = 15.0,
    ) -> AsyncIterator[Streamed]:
        """As `ask`, but yield the body as it arrives: it must begin within `first_byte_s` and pause at most
        `gap_s`.

        Raises:
            Unreachable: the answer did not begin; `Streamed.events` raises it if the answer does not go on.
        """
        until_s = asyncio.get_running_loop().time() + first_byte_s
        async with AsyncExitStack() as stack:
            with _in_our_words(url):
                async with asyncio.timeout_at(until_s):
                    response = await stack.enter_async_context(self._opened(url, body, headers, first_byte_s))
            pieces = await stack.enter_async_context(aclosing(_pieces(url, response, until_s, gap_s)))
            yield Streamed(response.status, pieces, _retry_after_s(response))

    @asynccontextmanager
    async def _opened(
        self, url: str, body: bytes | None, headers: Mapping[str, str] | None, patience_s: float
    ) -> AsyncIterator[httpcore.Response]:
        """Yield the answer's head. The caller bounds the wait for it; this bounds only the connection."""
        origin = _origin(url)
        if origin not in self._ours:
            self._check(origin)
        given = {"host": origin.authority, "user-agent": "millrace", "accept-encoding": "identity"}
        if body is not None:
            given["content-length"] = str(len(body))
        async with self._pool.stream(
            "GET" if body is None else "POST",
            url,
            headers=list((given | dict(headers or {})).items()),
            content=body,
            extensions={"timeout": {"connect": patience_s, "pool": patience_s}},
        ) as response:
            yield response

    def _check(self, origin: "_Origin") -> None:
        try:
            check_endpoint(f"{origin.scheme}://{origin.authority}", allows_loopback=self._allows_loopback)
        except ListingInvalid:
            raise Unreachable(f"{origin.authority} is not https:// with a public name", is_unsent=True) from None

    def _may_be_private(self, host: str, port: int) -> bool:
        if self._allows_loopback and host == "127.0.0.1":
            return True
        return any((each.host, each.port) == (host, port) for each in self._ours)


class _Origin(NamedTuple):
    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def _origin(url: str) -> _Origin:
    match = _URL.fullmatch(url)
    if match is None or int(match[3] or 1) not in range(1, 65536):
        raise Unreachable("the address must have the form https://name/path", is_unsent=True)
    return _Origin(match[1], match[2].strip("[]"), int(match[3] or _PORTS[match[1]]))


def _body(response: httpcore.Response) -> AsyncGenerator[bytes, None]:
    return cast(AsyncGenerator[bytes, None], response.aiter_stream())


async def _pieces(
    url: str, response: httpcore.Response, until_s: float, gap_s: float
) -> AsyncGenerator[bytes, None]:
    loop = asyncio.get_running_loop()
    async with aclosing(_body(response)) as pieces:
        while True:
            with _in_our_words(url):
                async with asyncio.timeout_at(until_s):
                    piece = await anext(pieces, None)
            if piece is None:
                return
            yield piece
            until_s = loop.time() + gap_s


def _retry_after_s(response: httpcore.Response) -> int | None:
    for name, value in response.headers:
        if name.lower() == b"retry-after" and value.isdigit() and len(value) < 10:
            return min(int(value), _RETRY_S_MAX)
    return None


@contextmanager
def _in_our_words(url: str) -> Generator[None]:
    where = url.partition("?")[0]
    try:
        yield
    except (httpcore.ConnectError, httpcore.ConnectTimeout, httpcore.PoolTimeout) as error:
        raise Unreachable(f"no connection to {where}: {type(error).__name__}", is_unsent=True) from None
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
        raise Unreachable(f"{where} closed the connection: {type(error).__name__}") from None
    except TimeoutError:
        raise Unreachable(f"{where} did not answer in time") from None

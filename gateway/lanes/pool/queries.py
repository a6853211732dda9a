"""Queries to a backend: limited in time and bytes, without redirects, with type-checked answers."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from gateway.lanes.pool.report import ProbeFailed
from runtime.http.client import Client, NoRoom, Unreachable
from runtime.http.origin import Origin, split_url
from runtime.http.upstream import Broken, Connection

LIST_BYTES_MAX = 4 * 2**20
SMALL_BYTES_MAX = 2**20
# Probes have their own client, so that traffic on every connection does not make a backend look dead.
CONNECTIONS_MAX = 32

_CONNECT_S_MAX = 2.0
_UNREACHABLE = {
    "ConnectionRefusedError": ("connection refused", "; is it running there?"),
    "TimeoutError": ("no answer", "; is the machine on?"),
    "gaierror": ("no such host", "; is the name right?"),
}

Shape = TypeVar("Shape")


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer's head and a limited number of its bytes; `is_cut` if there were more."""

    status: int
    body: bytes
    server: str = ""
    location: str = ""
    is_cut: bool = False

    def read(self, shape: type[Shape]) -> Shape | None:
        """Return the body in this shape; None if the status is an error or the body has another shape."""
        if self.status != 200 or self.is_cut:
            return None
        try:
            return msgspec.json.decode(self.body, type=shape, strict=False)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None


@dataclass(slots=True)
class _Collector:
    """Receives one answer from a connection, up to a bound."""

    bytes_max: int
    reply: asyncio.Future[Reply] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    connection: Connection | None = None
    _status: int = 0
    _headers: dict[bytes, bytes] = field(default_factory=dict)
    _parts: list[bytes] = field(default_factory=list)
    _size: int = 0

    def take_head(self, status: int, headers: dict[bytes, bytes]) -> None:
        self._status, self._headers = status, headers

    def take(self, data: bytes) -> None:
        self._size += len(data)
        if self._size <= self.bytes_max:
            self._parts.append(data)
            return
        self._parts.clear()
        if self.connection:
            self.connection.abort()
        self._answer(is_cut=True)

    def end(self, broken: Broken | None) -> None:
        if broken is None:
            self._answer()
        elif not self.reply.done():
            self.reply.set_exception(_BrokeOff(broken))

    def look_at_clock(self, now_s: float, *, is_heard: bool) -> None:
        """Do nothing: the query has its own timeout."""

    def _answer(self, *, is_cut: bool = False) -> None:
        if not self.reply.done():
            body, server, place = b"".join(self._parts), self._said(b"server"), self._said(b"location")
            self.reply.set_result(Reply(self._status, body, server, place, is_cut))

    def _said(self, header: bytes) -> str:
        return self._headers.get(header, b"").decode("latin-1")[:200]


class _BrokeOff(Exception):
    def __init__(self, broken: Broken) -> None:
        super().__init__(broken.reason)
        self.broken = broken


@dataclass(frozen=True, slots=True)
class Asker:
    """One backend's endpoints. Paths begin at the base URL without its /v1."""

    client: Client
    base_url: str
    headers: dict[str, str]
    timeout_s: float

    async def models(self) -> Reply:
        """Query GET /models of the API that serves requests."""
        return await self._ask("GET", split_url(self.base_url)[1] + "/models", LIST_BYTES_MAX)

    async def get(self, path: str, bytes_max: int = SMALL_BYTES_MAX) -> Reply:
        return await self._ask("GET", self._root + path, bytes_max)

    async def post(self, path: str, body: dict[str, Any], bytes_max: int = SMALL_BYTES_MAX) -> Reply:
        return await self._ask("POST", self._root + path, bytes_max, msgspec.json.encode(body))

    @property
    def _root(self) -> str:
        return split_url(self.base_url)[1].removesuffix("/v1").removesuffix("/v1-openai")

    async def _ask(self, method: str, path: str, bytes_max: int, body: bytes = b"") -> Reply:
        """Send a query. Raises ProbeFailed if no complete answer arrives in time."""
        origin, _ = split_url(self.base_url)
        parts = [_head(method, path, origin, self.headers, len(body)), body]
        try:
            try:
                return await self._once(origin, parts, bytes_max, is_fresh=False)
            except _BrokeOff as error:
                if not error.broken.is_stale:
                    raise
                return await self._once(origin, parts, bytes_max, is_fresh=True)
        except _BrokeOff as error:
            raise ProbeFailed("strange", f"does not answer as it should: {error}") from None

    async def _once(self, origin: Origin, parts: list[bytes], bytes_max: int, *, is_fresh: bool) -> Reply:
        collector = _Collector(bytes_max)
        try:
            async with asyncio.timeout(min(_CONNECT_S_MAX, self.timeout_s)):
                collector.connection = await self.client.ask(origin, parts, collector, is_fresh=is_fresh)
        except (Unreachable, TimeoutError) as error:
            name = str(error) if isinstance(error, Unreachable) else "TimeoutError"
            what, remedy = _UNREACHABLE.get(name, (name, ""))
            raise ProbeFailed("unreachable", f"cannot be reached ({what}){remedy}") from None
        except NoRoom as error:
            raise ProbeFailed("timeout", str(error)) from None
        try:
            async with asyncio.timeout(self.timeout_s):
                return await collector.reply
        except TimeoutError:
            raise ProbeFailed("timeout", f"does not answer within {self.timeout_s:g} s") from None
        finally:
            if not collector.reply.done() or collector.reply.cancelled():
                collector.connection.abort()


def _head(method: str, path: str, origin: Origin, headers: dict[str, str], body_bytes: int) -> bytes:
    """Return a request's head. The caller has checked that the headers contain no line breaks."""
    lines = [
        f"{method} {path} HTTP/1.1",
        f"host: {origin.authority}",
        "accept: application/json, text/plain",
        "accept-encoding: identity",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    if body_bytes:
        lines += ["content-type: application/json", f"content-length: {body_bytes}"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def explain(reply: Reply) -> ProbeFailed:
    """Return an error that explains to users why there is no list of models."""
    if reply.status in (401, 403):
        return ProbeFailed("refused", f"answers {reply.status}: it asks for a key; set api_key")
    if 300 <= reply.status < 400:
        return ProbeFailed("strange", f"redirects to {reply.location or 'elsewhere'}; use that as base_url")
    if reply.status == 503:
        return ProbeFailed("loading", "is still loading its model")
    if reply.status == 404:
        return ProbeFailed("strange", "answers 404 to GET /models; does base_url end with its API's path?")
    if reply.status != 200:
        return ProbeFailed("strange", f"answers {reply.status} to GET /models")
    if reply.is_cut:
        return ProbeFailed("strange", "its list of models is too long; name those you want in `models`")
    return ProbeFailed("strange", "has no readable list of models; name its models in `models`")

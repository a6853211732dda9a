"""The way in without a tunnel: ask the marketplace for work, and carry it to our own port.

For the agent behind that port this is like a tunnel. Answers go back in numbered parts, each its own request,
because proxies on the way may hold a request body back until it is complete.
"""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec
import structlog
from msgspec import Meta

from accounting.proofs.signing_key import Signer
from market.errors import JobInvalid
from market.network.outbound import Outbound, OutboundReply, Unreachable
from market.network.relayed_request import (
    DOMAIN,
    POLL_S,
    RELAYED_PACKED_BYTES_MAX,
    AnswerPart,
    RelayedRequest,
    read_relayed_request,
)
from market.protocol.records.envelope import Hex32
from market.seller.reach import Reach, Reaches
from market.seller.relay_transfer import carry

log = structlog.get_logger(__name__)

S = TypeVar("S", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class PullPace:
    """Limits on concurrent requests and on waiting, in seconds."""

    requests_max: int = 32
    poll_s: float = POLL_S + 15.0
    part_s: float = 40.0
    part_tries: int = 3
    failures_max: int = 3
    """Failed polls in a row before buyers are told that this seller is unreachable."""
    poll_s_min: float = 1.0
    """Minimum time between polls when a marketplace has no work."""
    backoff_first_s: float = 1.0
    backoff_max_s: float = 60.0

    def backoff_s(self, failures: int) -> float:
        """Return 1, 2, 4 ... seconds, reduced by up to half at random."""
        longest_s = min(self.backoff_first_s * 2.0 ** min(failures - 1, 16), self.backoff_max_s)
        return longest_s * random.uniform(0.5, 1.0)  # noqa: S311 - spread, not secrecy


class _MarketplaceRefused(Exception):
    """The marketplace refuses us; the message states its answer."""


class _SessionEnded(_MarketplaceRefused):
    """The marketplace no longer knows our session."""


@dataclass(frozen=True, slots=True)
class _Session:
    token: str
    renew_at_s: float

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}", "content-type": "application/octet-stream"}


class _Nonce(msgspec.Struct):
    nonce: Hex32
    marketplace: Hex32


class _Opened(msgspec.Struct):
    session: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.~+/=-]{1,200}\Z")]
    session_s: Annotated[int, Meta(ge=60, le=86_400)]


class Pull:
    """Keeps asking the marketplace for work, and tells `reaches` whether it can. The owner runs `run` as a task.

    Args:
        marketplace_url: without a slash at its end.
        identity: our own; `signer` has its current key.
        service_url: our own port, `http://127.0.0.1:PORT`.
        marketplace: returns the marketplace's identity, None until first contact. No other marketplace gets our
        signature.
    """

    def __init__(
        self,
        marketplace_url: str,
        identity: str,
        signer: Signer,
        outbound: Outbound,
        service_url: str,
        marketplace: Callable[[], str | None],
        reaches: Reaches,
        *,
        pace: PullPace | None = None,
    ) -> None:
        self._url = marketplace_url.rstrip("/") + "/market/v1/jobs"
        self._identity = identity
        self._signer = signer
        self._outbound = outbound
        self._service_url = service_url
        self._marketplace = marketplace
        self._pace = pace or PullPace()
        self._session: _Session | None = None
        self._opening = asyncio.Lock()
        self._room = asyncio.Semaphore(self._pace.requests_max)
        self.reaches = reaches

    async def run(self) -> None:
        """Run until cancelled; requests in progress are then cut off."""
        try:
            async with Outbound(False, named=[self._service_url]) as own, asyncio.TaskGroup() as requests:
                await self._keep_asking(own, requests)
        finally:
            self.reaches.tell(Reach(False, why="no more work is fetched"))

    async def _keep_asking(self, own: Outbound, requests: asyncio.TaskGroup) -> None:
        failures, is_poor = 0, False
        while True:
            session = None
            try:
                session = await self._current()
                if not is_poor:
                    self.reaches.tell(Reach(True))
                await self._fetch(session, own, requests)
                failures, is_poor = 0, False
            except (Unreachable, _MarketplaceRefused) as error:
                failures += 1
                log.warning("pull.failed", why=str(error), failures=failures)
                if failures >= self._pace.failures_max or not self.reaches.now.is_open:
                    # After polls of a session got lost, opening a new one proves nothing.
                    is_poor = session is not None and isinstance(error, Unreachable)
                    self.reaches.tell(Reach(False, why=f"cannot get work from the marketplace: {error}"))
                await asyncio.sleep(self._pace.backoff_s(failures))

    async def _current(self, refused: _Session | None = None) -> _Session:
        """Return the newest session, but not `refused`. Raises Unreachable, _MarketplaceRefused."""
        async with self._opening:
            session = self._session
            if session is None or session is refused or time.monotonic() >= session.renew_at_s:
                session = self._session = await self._open()
            return session

    async def _open(self) -> _Session:
        """Prove our identity to the known marketplace. Raises Unreachable, _MarketplaceRefused."""
        marketplace = self._marketplace()
        if marketplace is None:
            raise _MarketplaceRefused("its identity is not known yet")
        challenge = _read(await self._say("/nonce", {"identity": self._identity}), _Nonce)
        if challenge.marketplace != marketplace:
            raise _MarketplaceRefused("its identity differs from the pinned one")
        signed = DOMAIN + bytes.fromhex(marketplace) + bytes.fromhex(challenge.nonce)
        proof = {
            "identity": self._identity,
            "key": self._signer.public_key.hex(),
            "nonce": challenge.nonce,
            "signature": self._signer.sign(signed).hex(),
        }
        opened = _read(await self._say("/session", proof), _Opened)
        return _Session(opened.session, time.monotonic() + opened.session_s / 2)

    async def _say(self, path: str, fields: dict[str, str]) -> OutboundReply:
        headers = {"content-type": "application/json"}
        reply = await self._outbound.ask(self._url + path, msgspec.json.encode(fields), headers=headers)
        return _checked(reply)

    async def _fetch(self, session: _Session, own: Outbound, requests: asyncio.TaskGroup) -> None:
        """Ask for work once, as soon as there is room for it. Raises Unreachable, _MarketplaceRefused."""
        await self._room.acquire()
        is_taken, begun_s = False, time.monotonic()
        try:
            reply = await self._outbound.ask(
                self._url + "/poll",
                b"",
                headers=session.headers,
                timeout_s=self._pace.poll_s,
                bytes_max=RELAYED_PACKED_BYTES_MAX,
            )
            if reply.status == 204:
                await asyncio.sleep(begun_s + self._pace.poll_s_min - time.monotonic())
                return
            request = read_relayed_request(_checked(reply).body)
            requests.create_task(self._carry(own, request), name=f"relayed-{request.id}")
            is_taken = True
        except _SessionEnded:
            if self._session is session:
                self._session = None
            raise
        except JobInvalid as error:
            raise _MarketplaceRefused(f"it sent an invalid request: {error}") from None
        finally:
            if not is_taken:
                self._room.release()

    async def _carry(self, own: Outbound, request: RelayedRequest) -> None:
        async def send(part: AnswerPart) -> OutboundReply:
            return await self._send(request.id, part)

        try:
            await carry(request, own, self._service_url, send)
        except (Unreachable, _MarketplaceRefused) as error:
            log.warning("pull.answer_lost", why=str(error))
        finally:
            self._room.release()

    async def _send(self, job_id: str, part: AnswerPart) -> OutboundReply:
        """Send a part; it is safe to send it again if the outcome is unknown or with a newer session.

        Raises:
            Unreachable, _MarketplaceRefused: the part was not taken.
        """
        url, body = f"{self._url}/{job_id}/answer", msgspec.msgpack.encode(part)
        session = self._session or await self._current()
        attempt = 0
        while True:
            attempt += 1
            try:
                reply = await self._outbound.ask(url, body, headers=session.headers, timeout_s=self._pace.part_s)
            except Unreachable:
                if attempt >= self._pace.part_tries:
                    raise
                await asyncio.sleep(self._pace.backoff_s(attempt))
                session = self._session or await self._current()
                continue
            if reply.status != 401 or attempt >= self._pace.part_tries:
                return reply
            session = await self._current(refused=session)


def _checked(reply: OutboundReply) -> OutboundReply:
    if reply.status == 401:
        raise _SessionEnded("it answered 401")
    if reply.status != 200:
        raise _MarketplaceRefused(f"it answered {reply.status}")
    return reply


def _read(reply: OutboundReply, shape: type[S]) -> S:
    try:
        return msgspec.json.decode(reply.body, type=shape)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise _MarketplaceRefused("its answer is invalid") from None

"""The relay for sellers without a tunnel: the marketplace holds a buyer's request until the seller fetches it.

Contents are sealed between buyer and seller. The marketplace sees who talks to whom, how much and when, which it knows
from its allocations anyway.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Annotated

import msgspec
from fastapi import APIRouter, Header, Path, Request, Response
from pydantic import Field
from starlette.types import Message, Receive, Scope, Send

from gateway.admin.fields import Body
from gateway.api.edge import read_body
from market.errors import JobInvalid
from market.marketplace.relay_credit import backing_of
from market.marketplace.relay_queue import Carried, RelayBounds, RelayQueue
from market.marketplace.relay_sessions import SESSION_S, Sessions
from market.network.relayed_request import PART_PACKED_BYTES_MAX, AnswerPart, Method, body_bytes_max, read_part
from market.network.throttle import Throttle, network_of
from market.protocol.records.key_status import StandingOf
from runtime.errors import KeyInvalid, NotFound, RateLimited, RequestInvalid

PACKED = "application/octet-stream"
KNOCKS_PER_MINUTE = 120
"""Session requests of one network: each costs a database lookup and a signature check."""
JOBS_PER_MINUTE = 1200
"""Jobs of one network: each costs signature checks."""

Identity = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Seller = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]
JobId = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
Bearer = Annotated[str, Header(alias="authorization", max_length=200)]


class SessionAsked(Body):
    identity: Identity


class SessionProven(Body):
    identity: Identity
    key: Annotated[str, Field(pattern="^[0-9a-f]{64}$", description="Its current public key.")]
    nonce: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    signature: Annotated[str, Field(pattern="^[0-9a-f]{128}$")]


class Relay:
    """One per process. Its state is in memory only; lost requests are sent elsewhere by their buyers."""

    def __init__(
        self,
        marketplace: str,
        standing: StandingOf,
        is_seller: Callable[[str], bool],
        accounts_of: Callable[[str], tuple[str, ...]],
        bounds: RelayBounds | None = None,
        is_ending: Callable[[], bool] = lambda: False,
    ) -> None:
        """Create the relay. `standing`, `is_seller` and `accounts_of` read the database, so they run in threads.

        `accounts_of` returns the accounts of an allocation, given by its digest.
        """
        self.marketplace = marketplace
        self.standing = standing
        self.accounts_of = accounts_of
        self.sessions = Sessions(marketplace)
        self.queue = RelayQueue(bounds, is_ending)
        self._knocks = Throttle(KNOCKS_PER_MINUTE, time.monotonic)
        self._jobs = Throttle(JOBS_PER_MINUTE, time.monotonic)
        self._is_seller = is_seller

    def check_network(self, request: Request, *, is_job: bool = False) -> None:
        """Raises RateLimited."""
        address = request.client.host if request.client else ""
        if not (self._jobs if is_job else self._knocks).takes(network_of(address)):
            raise RateLimited("Too many requests from this network. Try again in a minute.", 60)

    async def check_seller(self, seller: str) -> None:
        """Raises NotFound."""
        if not await asyncio.to_thread(self._is_seller, seller):
            raise NotFound("This identity is not registered as a seller here. Register it at /market/v1/sellers.")

    async def check_key(self, seller: str, key: str) -> None:
        """Raises KeyInvalid, NotFound."""
        await self.check_seller(seller)
        if await asyncio.to_thread(self.standing, seller, key) != "current":
            raise KeyInvalid("This key is not the identity's current key.")


class _Answer(Response):
    """Stream what the seller sends until the buyer hangs up; the seller learns that with its next part."""

    def __init__(self, queue: RelayQueue, carried: Carried, first: AnswerPart) -> None:
        # Do not call the parent's constructor: there is no body whose length it could set.
        self.background = None
        self._queue = queue
        self._carried = carried
        self._first = first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's
        passing = asyncio.create_task(self._pass_on(send))
        hung_up = asyncio.create_task(_hung_up(receive))
        try:
            lasts_s = self._carried.lasts_s
            await asyncio.wait({passing, hung_up}, timeout=lasts_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._queue.drop(self._carried)
            passing.cancel()
            hung_up.cancel()
            await asyncio.gather(passing, hung_up, return_exceptions=True)

    async def _pass_on(self, send: Send) -> None:
        headers = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
        if self._first.content_type:
            headers.append((b"content-type", self._first.content_type.encode()))
        if self._first.retry_after_s:
            headers.append((b"retry-after", b"%d" % self._first.retry_after_s))
        await send({"type": "http.response.start", "status": self._first.status, "headers": headers})
        async for data in self._carried.rest(self._first):
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def relay_router(relay: Relay) -> APIRouter:
    """Return the routes for sellers that poll, and for buyers that ask them."""
    router = APIRouter()
    _add_sellers_routes(router, relay)
    _add_buyers_routes(router, relay)
    return router


def _add_sellers_routes(router: APIRouter, relay: Relay) -> None:
    @router.post("/market/v1/jobs/nonce")
    async def give_nonce(body: SessionAsked, request: Request) -> dict[str, str]:
        """Return a nonce for a seller without a tunnel to sign within a minute."""
        relay.check_network(request)
        await relay.check_seller(body.identity)
        return {"nonce": relay.sessions.nonce(body.identity), "marketplace": relay.marketplace}

    @router.post("/market/v1/jobs/session")
    async def open_session(proven: SessionProven, request: Request) -> dict[str, str | int]:
        """Open a session for a seller that signed the nonce; the token authorizes polling and answering."""
        relay.check_network(request)
        await relay.check_key(proven.identity, proven.key)
        token = relay.sessions.open(proven.identity, proven.key, proven.nonce, proven.signature)
        relay.queue.greet(proven.identity)
        return {"session": token, "session_s": SESSION_S}

    @router.post("/market/v1/jobs/poll")
    async def poll(request: Request, authorization: Bearer = "") -> Response:
        """Return the next request, or 204 if none comes for a while."""
        seller = _seller(relay, authorization)
        polling = asyncio.create_task(relay.queue.poll(seller))
        hung_up = asyncio.create_task(_hung_up(request.receive))
        try:
            # Do not give a request to a seller that has hung up: another of its sessions may wait for it.
            await asyncio.wait({polling, hung_up}, return_when=asyncio.FIRST_COMPLETED)
            relayed = await polling if polling.done() else None
        finally:
            polling.cancel()
            hung_up.cancel()
        if relayed is None:
            return Response(status_code=204)
        return Response(msgspec.msgpack.encode(relayed), media_type=PACKED)

    @router.post("/market/v1/jobs/{job_id}/answer")
    async def answer(job_id: JobId, request: Request, authorization: Bearer = "") -> dict[str, bool]:
        """Take the next part of an answer; sending the same one again is harmless."""
        seller = _seller(relay, authorization)
        packed = await read_body(request.scope, request.receive, PART_PACKED_BYTES_MAX)
        try:
            part = read_part(packed)
        except JobInvalid as error:
            raise RequestInvalid(str(error), code="malformed") from None
        await relay.queue.answer(seller, job_id, part)
        return {"taken": True}


def _add_buyers_routes(router: APIRouter, relay: Relay) -> None:
    @router.post("/market/v1/relay/{seller}/{path:path}", response_model=None)
    async def ask(seller: Seller, path: str, request: Request) -> Response:
        """Pass a buyer's sealed request on to a seller without a tunnel."""
        return await _carry(relay, seller, "POST", f"/{path}", request)

    @router.get("/market/v1/relay/{seller}/{path:path}", response_model=None)
    async def fetch(seller: Seller, path: str, request: Request) -> Response:
        """Fetch public data of a seller without a tunnel, before a purchase."""
        return await _carry(relay, seller, "GET", f"/{path}", request)


async def _carry(relay: Relay, seller: str, method: Method, path: str, request: Request) -> Response:
    longest_bytes = body_bytes_max(method, path)
    if longest_bytes is None or request.url.query:
        raise NotFound(f"Buyers cannot send {method} {path[:100]} to sellers.")
    relay.check_network(request, is_job=True)
    network = network_of(request.client.host if request.client else "")
    is_backed = path == "/market/v1/jobs"
    relay.queue.check_room(seller, "" if is_backed else network, is_backed=is_backed)
    with relay.queue.reading(network) as came:
        body = await read_body(request.scope, _counted(request.receive, came), longest_bytes)
        payer, accounts = network, tuple[str, ...]()
        if is_backed:
            backing = await asyncio.to_thread(backing_of, body, seller, relay.marketplace, relay.standing)
            payer, accounts = backing.channel, await asyncio.to_thread(relay.accounts_of, backing.allocation)
    carried = relay.queue.put(seller, payer, method, path, body, is_backed=is_backed, accounts=accounts)
    del body  # the queue now owns the body
    try:
        first = await carried.first()
    except BaseException:
        relay.queue.drop(carried)
        raise
    return _Answer(relay.queue, carried, first)


def _counted(receive: Receive, came: Callable[[int], None]) -> Receive:
    async def receive_and_count() -> Message:
        message = await receive()
        came(len(message.get("body", b"")))
        return message

    return receive_and_count


def _seller(relay: Relay, authorization: str) -> str:
    kind, _, token = authorization.partition(" ")
    if kind.lower() != "bearer":
        raise KeyInvalid("Send the session as 'Authorization: Bearer SESSION'.")
    return relay.sessions.seller_of(token.strip())

"""POST /market/v1/gossip: other gateways, also unknown ones, compare records with us and send their own.

None of it needs a key. Each new record costs a signature check, so each network has a limit per minute, and only a
few bodies are checked at once.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import ClientDisconnect

from market.errors import RecordInvalid
from market.network.gossip_wire import (
    BODY_BYTES_MAX,
    GossipDigest,
    GossipDigestAnswer,
    GossipRecords,
    GossipRecordsAnswer,
    raw_of,
    read,
    written,
)
from market.network.record_keeper import RecordKeeper
from market.network.throttle import Throttle, network_of

RECORDS_PER_MINUTE = 4000
QUESTIONS_PER_MINUTE = 240
_AT_ONCE = 2
# Bodies being read: 64 MiB in all.
_READING_MAX = 32
_BODY_S = 20.0


def peer_of(request: Request) -> str:
    """Return the address that the connection comes from."""
    return request.client.host if request.client else ""


def router(keeper: RecordKeeper, address_of: Callable[[Request], str] = peer_of) -> APIRouter:
    """Return the two routes. `address_of` returns the client's address if a proxy or tunnel is in front."""
    handler = _GossipHandler(keeper)
    routes = APIRouter(prefix="/market/v1/gossip")

    async def digest(request: Request) -> Response:
        return await handler.answer(request, address_of(request), handler.digest)

    async def records(request: Request) -> Response:
        return await handler.answer(request, address_of(request), handler.records)

    routes.add_api_route("/digest", digest, methods=["POST"], include_in_schema=False)
    routes.add_api_route("/records", records, methods=["POST"], include_in_schema=False)
    return routes


class _GossipHandler:
    def __init__(self, keeper: RecordKeeper) -> None:
        self._keeper = keeper
        self._questions = Throttle(QUESTIONS_PER_MINUTE, time.monotonic)
        self._records = Throttle(RECORDS_PER_MINUTE, time.monotonic)
        self._turn = asyncio.Semaphore(_AT_ONCE)
        self._reading = 0

    async def answer(self, request: Request, address: str, what: Callable[[bytes, str], Any]) -> Response:
        network = network_of(address)
        if not self._questions.takes(network):
            return _refusal(429, "too_many", "Too many requests from this network. Try again in a minute.")
        if self._reading >= _READING_MAX:
            return _refusal(503, "busy", "This gateway is busy. Try again in a minute.")
        self._reading += 1
        try:
            async with asyncio.timeout(_BODY_S):
                body = await _body_of(request)
                async with self._turn:
                    return _written(200, await what(body, network))
        except RecordInvalid as error:
            return _refusal(400, "malformed", f"The body {error}")
        except _TooMany:
            return _refusal(429, "too_many", "Too many records from this network. Send them again in a minute.")
        except ClientDisconnect:
            return _refusal(400, "malformed", "The body ended early.")
        except (TimeoutError, SQLAlchemyError):
            return _refusal(503, "busy", "This gateway is busy. Try again in a minute.")
        finally:
            self._reading -= 1

    async def digest(self, body: bytes, _network: str) -> GossipDigestAnswer:
        digest = read(body, GossipDigest)
        lacking = await asyncio.to_thread(self._keeper.differing, digest.summary)
        mine = await asyncio.to_thread(self._keeper.summary)
        return GossipDigestAnswer(mine, written(each.raw for each in lacking))

    async def records(self, body: bytes, network: str) -> GossipRecordsAnswer:
        sent = read(body, GossipRecords)
        if not self._records.takes(network, len(sent.records)):
            raise _TooMany
        taken = await asyncio.to_thread(self._keeper.add, raw_of(sent.records), f"from {network}")
        return GossipRecordsAnswer(taken)


class _TooMany(Exception):
    pass


async def _body_of(request: Request) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_BYTES_MAX:
            raise RecordInvalid("", f"has more than {BODY_BYTES_MAX} bytes")
    return bytes(body)


def _refusal(status: int, code: str, message: str) -> Response:
    answer = _written(status, {"error": {"code": code, "message": message}})
    if status in (429, 503):
        answer.headers["retry-after"] = "60"
    return answer


def _written(status: int, value: object) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")

"""Carry one request from the marketplace to our own port, and its answer back in numbered parts."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from market.network.outbound import Outbound, OutboundReply, Unreachable
from market.network.relayed_request import PART_BYTES_MAX, AnswerPart, RelayedRequest

PIECES_HELD = 16
FIRST_BYTE_S = 20.0
GAP_S = 20.0
"""The agent sends something every 10 s."""

Send: TypeAlias = Callable[[AnswerPart], Awaitable[OutboundReply]]
"""Sends a part to the marketplace. Raises Unreachable."""


@dataclass(frozen=True, slots=True)
class _Head:
    status: int
    content_type: str
    retry_after_s: int


async def carry(request: RelayedRequest, own: Outbound, service_url: str, send: Send) -> None:
    """Carry until the answer is complete or no longer wanted; the agent then sees its buyer hang up.

    Raises:
        Unreachable: the marketplace did not take a part, not even when it was sent again.
    """
    pieces: asyncio.Queue[bytes | None] = asyncio.Queue(PIECES_HELD)
    head: asyncio.Future[_Head] = asyncio.get_running_loop().create_future()
    reading = asyncio.create_task(_read(request, own, service_url, head, pieces), name="relayed-answer")
    try:
        await _send_parts(await head, pieces, send)
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def _read(
    request: RelayedRequest,
    own: Outbound,
    service_url: str,
    head: "asyncio.Future[_Head]",
    pieces: "asyncio.Queue[bytes | None]",
) -> None:
    try:
        body = request.body if request.method == "POST" else None
        headers = {"content-type": "application/octet-stream"} if body is not None else {}
        url = service_url + request.path
        async with own.stream(url, body, headers=headers, first_byte_s=FIRST_BYTE_S, gap_s=GAP_S) as answer:
            head.set_result(_head(request, answer.status, answer.retry_after_s or 0))
            async for piece in answer.events:
                await pieces.put(piece)
    except Unreachable:
        # If the answer had begun, its last sealed piece is missing, which tells the buyer.
        if not head.done():
            head.set_result(_Head(502, "", 0))
    finally:
        if not head.done():
            head.cancel()
    await pieces.put(None)


def _head(request: RelayedRequest, status: int, retry_after_s: int) -> _Head:
    is_stream = request.path == "/market/v1/jobs" and status == 200
    return _Head(status, "text/event-stream" if is_stream else "application/json", retry_after_s)


async def _send_parts(head: _Head, pieces: "asyncio.Queue[bytes | None]", send: Send) -> None:
    """Send parts one by one; data that arrives meanwhile forms the next part."""
    number, rest, is_last = 0, b"", False
    while not is_last:
        rest, is_over = await _gather(rest, pieces)
        data, rest = rest[:PART_BYTES_MAX], rest[PART_BYTES_MAX:]
        is_last = is_over and not rest
        part = AnswerPart(number, data, is_last, head.status, head.content_type, head.retry_after_s)
        if is_over and rest:
            pieces.put_nowait(None)  # put back, to be found once the rest is sent
        if (await send(part)).status != 200:
            return
        number += 1


async def _gather(rest: bytes, pieces: "asyncio.Queue[bytes | None]") -> tuple[bytes, bool]:
    """Return the data available, at least one byte unless it ended, and whether it is the last."""
    gathered = bytearray(rest)
    while True:
        if gathered and (pieces.empty() or len(gathered) >= PART_BYTES_MAX):
            return bytes(gathered), False
        piece = await pieces.get()
        if piece is None:
            return bytes(gathered), True
        gathered += piece

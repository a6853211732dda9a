"""The gateway pays little for text that a caller does not get: the buyer reads no faster than its caller."""

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from accounting.metering.delivered import Delivered
from accounting.metering.tokenizers import load_counter
from gateway.dialects.openai import read_request
from gateway.lanes.base import Call, Meter
from gateway.lanes.market.lane import MarketLane
from gateway.requests.delivery import AcknowledgedSink
from market.buyer.chunk_splitter import PART_CHARS, parts_of
from market.buyer.owed import Owed, OwedPage
from market.protocol.counting.answer import AnswerSoFar
from market.protocol.counting.token_count import Counting
from market.protocol.listings.prices import Prices
from market.protocol.records.amounts import Amount
from runtime.http.api_error import ApiError
from tests.gateway.http.edges import said
from tests.gateway.requests.roads import nothing_is_left
from tests.market.buyer.test_lane import ASKED, Fair, fair

pytestmark = pytest.mark.anyio

AHEAD_CHARS_MAX = 24 * 2**10
"""Of chunks of 4 KiB it is about 8 Ki, 16 Ki where others may follow the answer; of a model's own far less."""
TOKEN_NANO = 8
LONG: dict[str, Any] = {
    "pricing": Prices(Amount(1_000_000), Amount(TOKEN_NANO * 10**6), Amount(1_000_000)),
    "max_output_length": 10**6,
    "context_length": 3 * 10**6,
}
WORDS = "the mill grinds what the race brings " * 111
CHUNK = WORDS[:4096]


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


@asynccontextmanager
async def slow_fair(tmp_path: Path) -> AsyncIterator[Fair]:
    """The second seller says 1 MiB as fast as it goes; systems keep little for callers."""
    async with fair(tmp_path, {}, {"texts": (CHUNK,) * 256}, listed=(LONG,)) as market:
        for server in market.running.server.servers:
            for listening in server.sockets:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        await market.on_offer(2)
        yield market


async def hang_up(market: Fair, bytes_read: int, **fields: Any) -> None:
    """Read so much, then nothing for so long that all who are ahead have stopped, then leave."""
    loop, taken = asyncio.get_running_loop(), 0
    asked = {"model": "mill-1b", "stream": True, "max_tokens": 10**6, **ASKED, **fields}
    asked["provider"] = {"only": [market.sellers[1].id[:12]]}
    raw = market.running.request(json.dumps(asked).encode())
    with socket.socket() as caller:
        caller.setblocking(False)
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await loop.sock_connect(caller, ("127.0.0.1", market.running.port))
        await loop.sock_sendall(caller, raw.replace(market.running.key.encode(), market.key.encode()))
        async with asyncio.timeout(60):
            while taken < bytes_read:
                taken += len(await loop.sock_recv(caller, 4096))
        await asyncio.sleep(1)


async def owed(market: Fair, request_id: str) -> int:
    """What sellers have signed receipts for, for this request."""
    lane = market.running.services.lanes["market"]
    assert isinstance(lane, MarketLane)
    found: list[Owed] = []
    async with asyncio.timeout(60):
        while not found:
            page = msgspec.json.decode(await lane.ask_buyer("GET", "/owed?after="), type=OwedPage)
            found = [each for each in page.requests if each.id == request_id]
            await asyncio.sleep(0.02)
    return found[0].amount_nano


async def test_of_a_slow_caller_who_leaves_little_is_paid_that_he_has_not_got(tmp_path: Path) -> None:
    async with slow_fair(tmp_path) as market:
        seller = market.sellers[1]
        counting = Counting(load_counter(seller.tokenizer))
        token_chars = len(WORDS) / counting.delivered([Delivered(WORDS)]).completion_tokens
        # Alone, and where others who ask the same could follow.
        for number, fields in enumerate(({}, {"temperature": 0})):
            await hang_up(market, 60_000, **fields)
            row = await market.row(number)
            assert row.outcome == "interrupted"
            assert 40_000 < row.completion_tokens * token_chars < 100_000
            beyond_nano = await owed(market, row.request_id) - row.cost_nano
            assert 0 <= beyond_nano / TOKEN_NANO * token_chars <= AHEAD_CHARS_MAX
        await nothing_is_left(market.running)


@dataclass
class Slow:
    """A client whose system takes so many writes, and the one after them in part."""

    takes: int
    is_gone: bool = False
    keeps_calls: bool = False

    def write(self, _: bytes) -> None:
        self.takes -= 1

    @property
    def is_full(self) -> bool:
        return self.takes < 0

    def begin(self, *_: Any, **__: Any) -> None: ...
    def follow(self) -> None: ...
    def finish(self, *_: Any) -> None: ...
    def break_off(self, _: ApiError) -> None: ...
    async def drain(self) -> None: ...


@pytest.mark.parametrize(("takes", "tokens"), [(2, 9), (1, 1)])
def test_the_buyers_count_is_not_charged_where_part_of_the_text_waits_here(takes: int, tokens: int) -> None:
    """The end of an answer, and what it cost, is here before its caller has read so far."""
    raw = json.dumps({"model": "m", "stream": True, **ASKED}).encode()
    call = Call("id", "chat", read_request("chat", raw), raw)
    slow = Slow(takes)
    client = AcknowledgedSink(slow, is_countable=True, is_checked=False)
    client.write(said("word"))
    client.write(said("word", "stop"))
    meter = Meter(completion_tokens=9, source="upstream", cost_nano=720)
    slow.is_gone = True
    client.tell(meter, call, is_whole=False)
    assert (meter.completion_tokens, meter.cost_nano) == (tokens, 720 if takes == 2 else None)


def test_a_long_chunk_in_parts_says_the_same() -> None:
    chance = random.Random(1)
    texts = ["".join(chance.choices("ab \n\u00e9\U0001f600", k=size)) for size in (0, 1, 1024, 1025, 5000)]
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": texts[4]}}
    deltas: list[dict[str, Any]] = [
        *({"delta": {"content": text}} for text in texts),
        *({"text": text} for text in texts),
        {"delta": {"content": texts[3], "reasoning_content": texts[4]}},
        {"delta": {"tool_calls": [call, {"index": 1, "function": {"arguments": ""}}]}},
        {"delta": {"function_call": {"name": "f", "arguments": texts[4]}}},
        {"delta": {}},
    ]
    for each in deltas:
        choices = [{"index": 0, **each, "logprobs": {"content": []}, "finish_reason": "stop"}]
        whole, joined = AnswerSoFar("ab"), AnswerSoFar("ab")
        whole.add({"choices": choices})
        parts = [part for (part,) in parts_of(choices)]
        for part in parts:
            chars = joined.chars
            joined.add({"choices": [part]})
            assert joined.chars - chars <= PART_CHARS + len("f")
        assert joined.choices() == whole.choices()
        assert joined.transcript() == whole.transcript()
        assert [part["finish_reason"] for part in parts] == [*[None] * (len(parts) - 1), "stop"]
        assert [part["logprobs"] for part in parts] == [{"content": []}, *[None] * (len(parts) - 1)]

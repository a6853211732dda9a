"""Send a closed loop of requests: a number of connections, one request at a time on each, for some seconds.

With `per_s` the load is steady: each request has its moment, and a free connection waits for the next one.

It runs as its own process, reads an Order as JSON from stdin and prints its result, Saw, as JSON. Every request is
different, so that no answer comes from a cache.
"""

import asyncio
import re
import sys
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import httptools
import msgspec
import orjson
import uvloop

# How long a last request may take beyond the window, in seconds.
_PATIENCE_S = 30.0
_REFUSED_MAX = 20
_STAMP = re.compile(rb"@(\d{9,20})@")
_NONCE = b"NNNNNNNNNNNN"
_ERROR_CHARS = 300


class Order(msgspec.Struct, kw_only=True, frozen=True):
    """What to send, where, and for how long. `events` 0 asks for whole answers; `per_s` 0 sends without pauses.

    `others` are keys that are used in turn with `key`.
    """

    base_url: str
    key: str
    model: str
    connections: int
    seconds: float
    requests_max: int = 1_000_000
    events: int = 0
    pause_us: int = 0
    prompt_bytes: int = 500
    per_s: float = 0.0
    others: tuple[str, ...] = ()


class Quantiles(msgspec.Struct, frozen=True):
    """In microseconds."""

    p50: float
    p99: float

    @classmethod
    def of(cls, values_ns: Sequence[int]) -> "Quantiles | None":
        if not values_ns:
            return None
        ordered = sorted(values_ns)
        at = (ordered[int(share * (len(ordered) - 1))] / 1e3 for share in (0.5, 0.99))
        return cls(*at)


class Saw(msgspec.Struct, kw_only=True, frozen=True):
    """The result of an Order. An incomplete answer is an error, whatever its status was."""

    answered: int
    seconds: float
    errors: dict[str, int]
    latency: Quantiles | None
    transit: Quantiles | None

    @property
    def requests(self) -> int:
        return self.answered + sum(self.errors.values())


class Load:
    """The state that all connections share."""

    def __init__(self, order: Order) -> None:
        self.order = order
        url = urlsplit(order.base_url)
        self.address = (url.hostname or "127.0.0.1", url.port or 80)
        self._parts = [_request(order, key).split(_NONCE) for key in (order.key, *order.others)]
        self._left = order.requests_max
        self._nonce = time.time_ns() % 10**12
        self._began_s = asyncio.get_running_loop().time()
        self._planned = 0
        self._until_ns = time.perf_counter_ns() + int(order.seconds * 1e9)
        self.latencies_ns: list[int] = []
        self.transits_ns: list[int] = []
        self.errors: dict[str, int] = {}

    @property
    def is_over(self) -> bool:
        return self._left <= 0 or time.perf_counter_ns() >= self._until_ns

    def next_request(self) -> bytes:
        self._left -= 1
        self._nonce += 1
        before, after = self._parts[self._nonce % len(self._parts)]
        return b"%s%012d%s" % (before, self._nonce % 10**12, after)

    def next_moment_s(self) -> float:
        """Return when the next request is due, on the loop's clock."""
        self._planned += 1
        return self._began_s + self._planned / self.order.per_s

    def fail(self, what: str) -> None:
        self.errors[what] = self.errors.get(what, 0) + 1


def _request(order: Order, key: str) -> bytes:
    url = urlsplit(order.base_url)
    plan = f"events={order.events} pause_us={order.pause_us}" if order.events else ""
    text = f"{_NONCE.decode()} {plan} ".ljust(order.prompt_bytes, "x")
    body: dict[str, Any] = {
        "model": order.model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 64,
    }
    if order.events:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    raw = orjson.dumps(body)
    head = (
        f"POST {url.path}/chat/completions HTTP/1.1\r\nhost: {url.netloc}\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
    )
    return head.encode() + raw


class Caller(asyncio.Protocol):
    """One connection. It sends the next request as soon as it has its answer, until the load is over."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._loop = asyncio.get_running_loop()
        self.done = self._loop.create_future()
        self._is_waiting = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._ask_in_time()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio names its arguments
        if self._is_waiting:
            self._load.fail("cut off")
        if not self.done.done():
            self.done.set_result(None)

    def _ask_in_time(self) -> None:
        if self._load.order.per_s:
            self._loop.call_at(self._load.next_moment_s(), self._ask)
        else:
            self._ask()

    def _ask(self) -> None:
        if self._transport.is_closing():
            return
        if self._load.is_over:
            self._is_waiting = False
            self._transport.close()
            return
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._is_waiting = True
        self._sent_ns = time.perf_counter_ns()
        self._transport.write(self._load.next_request())

    def data_received(self, data: bytes) -> None:
        if self._load.order.events:
            now_ns = time.monotonic_ns()
            self._load.transits_ns.extend(now_ns - int(stamp) for stamp in _STAMP.findall(data))
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._load.fail(f"not HTTP: {error}")
            self._is_waiting = False
            self._transport.abort()

    # Called by the parser.

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        took_ns = time.perf_counter_ns() - self._sent_ns
        problem = self._problem(b"".join(self._body))
        if problem:
            self._load.fail(problem)
        else:
            self._load.latencies_ns.append(took_ns)
        self._is_waiting = False
        if self._parser.should_keep_alive():
            self._ask_in_time()
        else:
            self._transport.close()

    def _problem(self, body: bytes) -> str:
        """Return what is wrong with the answer, or ""."""
        if self._parser.get_status_code() != 200:
            return f"{self._parser.get_status_code()} {body[:_ERROR_CHARS].decode(errors='replace')}"
        if not self._load.order.events:
            return "" if b'"choices"' in body else "no choices"
        is_whole = b"[DONE]" in body and len(_STAMP.findall(body)) == self._load.order.events
        return "" if is_whole else "stream not whole"


async def _connect(load: Load) -> None:
    loop = asyncio.get_running_loop()
    refused = 0
    while not load.is_over and refused < _REFUSED_MAX:
        try:
            _, caller = await loop.create_connection(lambda: Caller(load), *load.address)
        except OSError:
            refused += 1
            load.fail("refused")
            await asyncio.sleep(0.05)
        else:
            await caller.done


async def run(order: Order) -> Saw:
    load = Load(order)
    began_ns = time.perf_counter_ns()
    callers = [asyncio.create_task(_connect(load)) for _ in range(order.connections)]
    _, late = await asyncio.wait(callers, timeout=order.seconds + _PATIENCE_S)
    for caller in late:
        load.fail("no end")
        caller.cancel()
    return Saw(
        answered=len(load.latencies_ns),
        seconds=(time.perf_counter_ns() - began_ns) / 1e9,
        errors=load.errors,
        latency=Quantiles.of(load.latencies_ns),
        transit=Quantiles.of(load.transits_ns),
    )


if __name__ == "__main__":
    given = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(run(given))))

"""Passing an OpenAI-compatible upstream's answer on, byte for byte, while reading what it used."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp
import orjson

from accounting.metering import estimate
from gateway.errors import LaneFailed, LaneLimited, LaneTimeout, LaneUnreachable
from gateway.lanes.base import Answer, Call, Meter

CONNECT_S = 5.0
ERROR_BYTES_MAX = 64 * 2**10
ANSWER_BYTES_MAX = 64 * 2**20

# The usage event and [DONE] fit in here whatever the model's name is.
_TAIL_BYTES = 4096
EVENT = b"data: "
DONE = b"data: [DONE]"
_FINISHED = b'"finish_reason":"'

# Statuses that say something of the backend, not of the request: another candidate may do better.
_BACKEND_TO_BLAME = frozenset((401, 403, 404, 405, 408, 429))


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where to send a call, and how patient to be."""

    name: str
    session: aiohttp.ClientSession
    base_url: str
    headers: dict[str, str]
    first_byte_s: float
    silence_s: float


class Reader(Protocol):
    """Looks at an answer's bytes on their way."""

    def feed(self, chunk: bytes) -> bytes:
        """Take the next bytes; returns what the caller gets now."""

    def check_end(self) -> None:
        """The upstream closed its answer. Raises LaneFailed when it is not whole and does not say so."""

    def fill(self, meter: Meter, call: Call) -> None:
        """The answer has ended or was cut: say what it used."""


async def relay(
    upstream: Upstream, call: Call, body: bytes, reader: Reader, owned: AsyncExitStack | None = None
) -> Answer:
    """Send the call and return once the upstream answers; `owned` is closed with the answer's body.

    Raises LaneFailed and its kinds when another backend may do better.
    """
    stack = owned or AsyncExitStack()
    try:
        response = await _send(upstream, call, body)
        stack.callback(response.close)
        if response.status >= 500 or response.status in _BACKEND_TO_BLAME:
            raise await _failure(upstream, response)
    except BaseException:
        await stack.aclose()
        raise
    meter = Meter()
    content_type = response.headers.get("content-type", "application/json")
    if response.status != 200:
        reader = WholeReader()
    return Answer(response.status, content_type, _pass_on(upstream, call, response, reader, meter, stack), meter)


async def _send(upstream: Upstream, call: Call, body: bytes) -> aiohttp.ClientResponse:
    path = "/chat/completions" if call.kind == "chat" else "/completions"
    headers = upstream.headers | {"content-type": "application/json", "x-request-id": call.id}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=upstream.silence_s)
    try:
        async with asyncio.timeout(upstream.first_byte_s):
            return await upstream.session.post(
                upstream.base_url + path, data=body, headers=headers, timeout=timeout, allow_redirects=False
            )
    except TimeoutError:
        raise LaneTimeout(f"{upstream.name} did not answer within {upstream.first_byte_s:.0f} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise LaneUnreachable(f"{upstream.name} cannot be reached: {type(error).__name__}") from None


async def _failure(upstream: Upstream, response: aiohttp.ClientResponse) -> LaneFailed:
    """What an error answer means for the journey."""
    try:
        async with asyncio.timeout(CONNECT_S):
            content = await response.content.read(ERROR_BYTES_MAX)
        error = orjson.loads(content).get("error")
    except (aiohttp.ClientError, OSError, TimeoutError, orjson.JSONDecodeError, AttributeError):
        error = None
    said = error.get("message") if isinstance(error, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    message = f"{upstream.name} answered {response.status}" + (f": {said}" if said else "")
    code = code if isinstance(code, str) else None
    if response.status == 429:
        return LaneLimited(message, code=code)
    return LaneTimeout(message, code=code) if response.status in (408, 504) else LaneFailed(message, code=code)


async def _pass_on(
    upstream: Upstream,
    call: Call,
    response: aiohttp.ClientResponse,
    reader: Reader,
    meter: Meter,
    stack: AsyncExitStack,
) -> AsyncGenerator[bytes]:
    async with stack:
        try:
            async for chunk in response.content.iter_any():
                if passed := reader.feed(chunk):
                    yield passed
            reader.check_end()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise LaneFailed(f"{upstream.name} broke off: {type(error).__name__}") from None
        finally:
            reader.fill(meter, call)


class StreamReader:
    """Passes a stream untouched, counts its events and keeps its end, where the usage stands."""

    def __init__(self) -> None:
        self._tail = b""
        self._events = 0

    def feed(self, chunk: bytes) -> bytes:
        self._events += chunk.count(EVENT)
        self._tail = (self._tail + chunk)[-_TAIL_BYTES:]
        return chunk

    def check_end(self) -> None:
        """Whether the stream was whole shows in the bytes that the caller has."""

    def fill(self, meter: Meter, call: Call) -> None:
        meter.is_complete = DONE in self._tail or _FINISHED in self._tail
        for line in reversed(self._tail.split(b"\n")):
            if line.startswith(EVENT) and b'"usage"' in line and read_usage(line[len(EVENT) :], meter):
                return
        # Without a usage event every event is about one token; the last says only that the stream is done.
        meter.completion_tokens = max(0, self._events - int(meter.is_complete))
        meter.prompt_tokens = estimate_prompt(call)


class WholeReader:
    """Keeps an answer's bytes to read its usage, up to a bound."""

    def __init__(self) -> None:
        self._content = bytearray()

    def feed(self, chunk: bytes) -> bytes:
        if len(self._content) < ANSWER_BYTES_MAX:
            self._content += chunk
        return chunk

    def check_end(self) -> None:
        """The connection's own length accounting has done so."""

    def fill(self, meter: Meter, call: Call) -> None:
        meter.is_complete = read_usage(bytes(self._content), meter)
        if not meter.is_complete:
            meter.prompt_tokens = estimate_prompt(call)


def read_usage(content: bytes, meter: Meter) -> bool:
    """Take the usage of a JSON answer or event; False when there is none that makes sense."""
    try:
        answer = orjson.loads(content)
    except orjson.JSONDecodeError:
        return False
    usage = answer.get("usage") if isinstance(answer, dict) else None
    if not isinstance(usage, dict):
        return False
    details = usage.get("prompt_tokens_details")
    meter.prompt_tokens = _count(usage.get("prompt_tokens"))
    meter.completion_tokens = _count(usage.get("completion_tokens"))
    meter.cached_tokens = min(
        meter.prompt_tokens, _count(details.get("cached_tokens") if isinstance(details, dict) else 0)
    )
    meter.source = "upstream"
    return True


def estimate_prompt(call: Call) -> int:
    """Prompt tokens where nobody told: the body's size, which includes its JSON."""
    return estimate(call.raw.decode("utf-8", "replace")).tokens


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**9 else 0

"""Passing an OpenAI-compatible upstream's answer on, byte for byte, while reading what it used."""

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

import aiohttp
import orjson

from accounting.metering import estimate
from gateway.errors import LaneBrokeOff, LaneBusy, LaneFailed, LaneLimited, LaneTimeout, LaneUnreachable
from gateway.http.events import DONE, EventSplitter
from gateway.lanes.base import Answer, Call, Meter, begun
from gateway.lanes.tokens import estimate_prompt, read_usage, said_in
from gateway.openai import Kind

CONNECT_S = 5.0
ERROR_BYTES_MAX = 64 * 2**10
ANSWER_BYTES_MAX = 64 * 2**20

_CHOICES_MAX = 10_000
_PATHS: dict[Kind, str] = {"chat": "/chat/completions", "completion": "/completions", "embedding": "/embeddings"}
_RETRY_AFTER_S_MAX = 86_400
_SAID_CHARS = 500

# Statuses that say something of the backend, not of the request: another candidate may do better.
_BACKEND_TO_BLAME = frozenset((401, 403, 404, 405, 408, 429))
# The cloud worker's words for a provider that had the request and did not answer it properly.
_PERHAPS_WORKED_ON = frozenset(("provider_broke_off", "provider_garbled"))


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

    Raises LaneFailed and its kinds: LaneUnreachable when nothing was sent, LaneBrokeOff when it may have been
    worked on. The journey decides what that means for the next candidate.
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
    if response.status != 200 or "json" in content_type:
        reader = WholeReader()  # an error, or a server that does not stream
    passed_on = await begun(_pass_on(upstream, call, response, reader, meter, stack))
    return Answer(response.status, content_type, passed_on, meter)


async def _send(upstream: Upstream, call: Call, body: bytes) -> aiohttp.ClientResponse:
    url = upstream.base_url + _PATHS[call.kind]
    # Encoded bytes could not be read on their way, and the caller has not said which encodings it knows.
    headers = upstream.headers | {
        "content-type": "application/json",
        "accept-encoding": "identity",
        "x-request-id": call.id,
    }
    # A read has no bound here: until the head it is first_byte_s, within the body silence_s.
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
    try:
        async with asyncio.timeout(upstream.first_byte_s):
            return await upstream.session.post(
                url, data=body, headers=headers, timeout=timeout, allow_redirects=False
            )
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise LaneUnreachable(f"{upstream.name} cannot be reached: {type(error).__name__}") from None
    except TimeoutError:
        raise LaneTimeout(f"{upstream.name} did not answer within {upstream.first_byte_s:.0f} s") from None
    except (aiohttp.ClientError, OSError) as error:
        text = f"{upstream.name} had the request and broke off before it answered: {type(error).__name__}"
        raise LaneBrokeOff(text) from None


async def _failure(upstream: Upstream, response: aiohttp.ClientResponse) -> LaneFailed:
    """What an error answer means for the journey."""
    try:
        async with asyncio.timeout(CONNECT_S):
            content = await response.content.read(ERROR_BYTES_MAX)
        error = orjson.loads(content).get("error")
    except (aiohttp.ClientError, OSError, TimeoutError, orjson.JSONDecodeError, AttributeError):
        error = None
    said, code = (error.get("message"), error.get("code")) if isinstance(error, dict) else (None, None)
    said = said if isinstance(said, str) else None
    message = f"{upstream.name} answered {response.status}" + (f": {said[:_SAID_CHARS]}" if said else "")
    code = code if isinstance(code, str) else None
    retry_after_s = _retry_after_s(response.headers.get("retry-after"))
    if response.status == 429:
        return LaneLimited(message, code=code, retry_after_s=retry_after_s)
    if response.status == 503 and retry_after_s is not None:
        return LaneBusy(message, code=code, retry_after_s=retry_after_s)
    if response.status in (408, 504):
        return LaneTimeout(message, code=code)
    return LaneBrokeOff(message, code=code) if code in _PERHAPS_WORKED_ON else LaneFailed(message, code=code)


def _retry_after_s(said: str | None) -> int | None:
    """The header's seconds, or the seconds until its date; None when it says nothing that makes sense."""
    if said is None:
        return None
    try:
        wait_s = float(said)
    except ValueError:
        try:
            wait_s = (parsedate_to_datetime(said) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):
            return None
    return math.ceil(min(max(wait_s, 1), _RETRY_AFTER_S_MAX)) if math.isfinite(wait_s) else None


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
            yield b""
            while chunk := await _next_chunk(upstream, response):
                if passed := reader.feed(chunk):
                    yield passed
            reader.check_end()
        except TimeoutError:
            raise LaneFailed(f"{upstream.name} sent nothing for {upstream.silence_s:.0f} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise LaneFailed(f"{upstream.name} broke off: {type(error).__name__}") from None
        finally:
            reader.fill(meter, call)


async def _next_chunk(upstream: Upstream, response: aiohttp.ClientResponse) -> bytes:
    """What has arrived, at once; empty at the end."""
    async with asyncio.timeout(upstream.silence_s):
        return await response.content.readany()


class StreamReader:
    """Passes a stream untouched and reads along: how it ended, and what it used."""

    def __init__(self) -> None:
        self._events = EventSplitter()
        self._usage = Meter()
        self._said_events = 0
        self._unfinished: set[Any] = set()
        self._has_finished = False
        self._is_done = False
        self._is_broken = False
        self._has_ended = False

    def feed(self, chunk: bytes) -> bytes:
        for data in self._events.feed(chunk):
            self._read(data)
        return chunk

    def check_end(self) -> None:
        """Whether the stream was whole shows in the bytes that the caller has."""
        for data in self._events.end():
            self._read(data)
        self._has_ended = True

    def fill(self, meter: Meter, call: Call) -> None:
        # Some servers end without [DONE]: a stream is whole as well when every choice that began has finished.
        is_finished = self._has_ended and self._has_finished and not self._unfinished
        meter.is_complete = (self._is_done or is_finished) and not self._is_broken
        if self._usage.source == "upstream":
            meter.take(self._usage)
            return
        # Without usage every event with text in it is about one token.
        meter.completion_tokens = self._said_events
        meter.prompt_tokens = estimate_prompt(call.request)

    def _read(self, data: bytes) -> None:
        if data == DONE:
            self._is_done = True
            return
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            return
        if not isinstance(event, dict):
            return
        self._is_broken = self._is_broken or bool(event.get("error"))
        read_usage(event, self._usage)
        choices = event.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            self._said_events += bool(said_in(choice))
            self._follow(choice)

    def _follow(self, choice: Any) -> None:
        index = choice.get("index", 0) if isinstance(choice, dict) else None
        if not isinstance(index, int):
            return
        if choice.get("finish_reason"):
            self._unfinished.discard(index)
            self._has_finished = True
        elif len(self._unfinished) < _CHOICES_MAX:
            self._unfinished.add(index)


class WholeReader:
    """Keeps an answer's bytes to read its usage, up to a bound."""

    def __init__(self) -> None:
        self._content = bytearray()
        self._has_ended = False

    def feed(self, chunk: bytes) -> bytes:
        if len(self._content) < ANSWER_BYTES_MAX:
            self._content += chunk
        return chunk

    def check_end(self) -> None:
        """The connection's own length accounting has done so."""
        self._has_ended = True

    def fill(self, meter: Meter, call: Call) -> None:
        try:
            answer = orjson.loads(self._content)
        except orjson.JSONDecodeError:
            answer = None
        is_embedding = call.kind == "embedding"
        parts = answer.get("data" if is_embedding else "choices") if isinstance(answer, dict) else None
        meter.is_complete = self._has_ended and isinstance(parts, list)
        if read_usage(answer, meter) or not isinstance(parts, list):
            return
        meter.prompt_tokens = estimate_prompt(call.request)
        if not is_embedding:
            meter.completion_tokens = sum(estimate(said_in(choice)).tokens for choice in parts)

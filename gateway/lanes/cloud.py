"""The cloud lane: providers through the cloud worker's unix socket, paid by the token."""

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from accounting.errors import PriceUnknown
from accounting.metering import estimate
from accounting.prices import PriceBook
from gateway.cloud_worker.supervisor import CloudWorker, CloudWorkerUnavailable
from gateway.errors import LaneFailed, LaneUnreachable
from gateway.lanes.base import Answer, Call, Meter, Offer
from gateway.lanes.relay import DONE, EVENT, Upstream, WholeReader, estimate_prompt, read_usage, relay
from gateway.settings import CloudSettings, LaneName

_FIRST_BYTE_S = 180.0
_SILENCE_S = 120.0
_EVENT_BYTES_MAX = 4 * 2**20


class CloudLane:
    """Offers the configured models that have a price; every call holds a lease on the worker until it ends."""

    name: LaneName = "cloud"

    def __init__(self, settings: CloudSettings, worker: CloudWorker, prices: PriceBook) -> None:
        self._settings = settings
        self._worker = worker
        self._prices = prices
        self._sessions: dict[Path, aiohttp.ClientSession] = {}

    async def stop(self) -> None:
        for session in self._sessions.values():
            await session.close()
        await self._worker.stop()

    def models(self) -> list[str]:
        return sorted(self._settings.models)

    def offers(self, model: str) -> list[Offer]:
        entry = self._settings.models.get(model)
        if entry is None:
            return []
        try:
            price = self._prices.find("cloud", entry.model)
        except PriceUnknown as error:
            note = f"{error}; set prompt_usd_per_mtok and completion_usd_per_mtok"
            return [Offer("cloud", entry.model, model, state="down", note=note)]
        if entry.max_output_tokens:
            price = replace(price, max_output_tokens=entry.max_output_tokens)
        return [Offer("cloud", entry.model, model, context_tokens=price.max_input_tokens, price=price)]

    async def open(self, call: Call, offer: Offer) -> Answer:  # noqa: ARG002 - a lane of one backend
        try:
            return await self._open(call)
        except LaneUnreachable:
            # The worker died between two health checks. It has seen nothing, so a fresh one may be asked.
            return await self._open(call)

    async def _open(self, call: Call) -> Answer:
        stack = AsyncExitStack()
        try:
            lease = await stack.enter_async_context(self._worker.acquire())
        except CloudWorkerUnavailable as error:
            raise LaneFailed(str(error)) from None
        upstream = Upstream(
            name="cloud",
            session=self._session_for(lease.socket_path),
            base_url="http://worker/v1",
            headers={},
            first_byte_s=_FIRST_BYTE_S,
            silence_s=_SILENCE_S,
        )
        reader = EventReader(call) if call.request.is_stream else WholeReader()
        try:
            return await relay(upstream, call, _body(call), reader, stack)
        except LaneUnreachable:
            await self._worker.report_unreachable(lease)
            raise

    def _session_for(self, socket_path: Path) -> aiohttp.ClientSession:
        """One session a worker; those of recycled workers live on for their running answers."""
        if socket_path not in self._sessions:
            connector = aiohttp.UnixConnector(str(socket_path), limit=0)
            self._sessions[socket_path] = aiohttp.ClientSession(connector=connector)
        return self._sessions[socket_path]


class EventReader:
    """Passes a stream event by event, without the usage event unless the caller asked for one.

    The delivered text is kept: it is what an answer that breaks off is charged by.
    """

    def __init__(self, call: Call) -> None:
        self._passes_usage = call.request.wants_usage
        self._said: list[str] = []
        self._held = b""
        self._usage = Meter()
        self._is_complete = False
        self._is_broken = False

    def feed(self, chunk: bytes) -> bytes:
        *events, self._held = (self._held + chunk).split(b"\n\n")
        if len(self._held) > _EVENT_BYTES_MAX:
            raise LaneFailed("cloud sent an event without an end")
        return b"".join(event + b"\n\n" for event in events if self._passes(event))

    def check_end(self) -> None:
        if not self._is_complete and not self._is_broken:
            raise LaneFailed("the cloud worker ended in the middle of its answer")

    def fill(self, meter: Meter, call: Call) -> None:
        meter.is_complete = self._is_complete
        if self._usage.source == "upstream":
            meter.prompt_tokens = self._usage.prompt_tokens
            meter.cached_tokens = self._usage.cached_tokens
            meter.completion_tokens = self._usage.completion_tokens
            meter.source = "upstream"
        elif self._said:
            meter.completion_tokens = estimate("".join(self._said)).tokens
            meter.prompt_tokens = estimate_prompt(call)

    def _passes(self, event: bytes) -> bool:
        if event == DONE:
            self._is_complete = True
            return True
        try:
            content = orjson.loads(event.removeprefix(EVENT))
        except orjson.JSONDecodeError:
            return True
        self._is_broken = self._is_broken or "error" in content
        choices = content.get("choices") or []
        if content.get("usage"):
            read_usage(event.removeprefix(EVENT), self._usage)
            return bool(choices) or self._passes_usage
        self._said += [text for choice in choices if (text := _text(choice))]
        return True


def _text(choice: dict[str, Any]) -> str:
    """Everything in a chunk's choice that the provider generated, tool arguments included."""
    delta = choice.get("delta") or {}
    calls = "".join((call.get("function") or {}).get("arguments") or "" for call in delta.get("tool_calls") or ())
    return (
        (choice.get("text") or "") + (delta.get("content") or "") + (delta.get("reasoning_content") or "") + calls
    )


def _body(call: Call) -> bytes:
    """The caller's bytes without our extras, asking a stream for its usage: that is what gets charged."""
    needs_usage = call.request.is_stream and not call.request.wants_usage
    if not needs_usage and call.request.millrace is None:
        return call.raw
    body = orjson.loads(call.raw)
    body.pop("millrace", None)
    if needs_usage:
        body["stream_options"] = (body.get("stream_options") or {}) | {"include_usage": True}
    return orjson.dumps(body)

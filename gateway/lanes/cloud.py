"""The cloud lane: providers through the cloud worker's unix socket, paid by the token."""

import math
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import orjson

from accounting.errors import PriceUnknown
from accounting.metering import estimate
from accounting.prices import PriceBook
from gateway.cloud_worker.supervisor import CloudWorker, CloudWorkerUnavailable
from gateway.errors import LaneBrokeOff, LaneBusy, LaneFailed, LaneUnreachable, RequestInvalid
from gateway.http.events import DONE
from gateway.lanes.base import Answer, Call, Meter, Offer
from gateway.lanes.features import ALL_FEATURES, UNPRICED
from gateway.lanes.relay import Upstream, WholeReader, relay
from gateway.lanes.tokens import estimate_prompt, read_usage, said_in
from gateway.limits.admission import output_bound
from gateway.openai import GENERATES, ChatRequest
from gateway.settings import CloudSettings, LaneName

_FIRST_BYTE_S = 180.0
_SILENCE_S = 120.0
_EVENT_BYTES_MAX = 4 * 2**20
_EVENT = b"data: "
_FEATURES = ALL_FEATURES - UNPRICED
_LIMITS = ("max_tokens", "max_completion_tokens")
_top_level = msgspec.json.Decoder(dict[str, msgspec.Raw])


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
            price = self._prices.find("cloud", entry.model, name=model)
        except PriceUnknown as error:
            note = f"{error}; set prompt_usd_per_mtok and completion_usd_per_mtok"
            return [Offer("cloud", model, model, state="down", note=note, kinds=GENERATES)]
        if entry.max_output_tokens:
            price = replace(price, max_output_tokens=entry.max_output_tokens)
        return [
            Offer(
                "cloud",
                model,
                model,
                features=_FEATURES,
                kinds=GENERATES,
                context_tokens=price.max_input_tokens,
                price=price,
            )
        ]

    async def open(self, call: Call, offer: Offer) -> Answer:
        body = _body(call, offer)
        try:
            return await self._open(call, body)
        except LaneUnreachable:
            # The worker died between two health checks. It has seen nothing, so a fresh one may be asked.
            return await self._open(call, body)

    async def _open(self, call: Call, body: bytes) -> Answer:
        await self._forget_ended_workers()
        stack = AsyncExitStack()
        try:
            lease = await stack.enter_async_context(self._worker.acquire())
        except CloudWorkerUnavailable as error:
            raise LaneBusy(str(error), retry_after_s=math.ceil(error.retry_after_s)) from None
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
            return await relay(upstream, call, body, reader, stack)
        except (LaneUnreachable, LaneBrokeOff):
            await self._worker.report_unreachable(lease)
            raise

    def _session_for(self, socket_path: Path) -> aiohttp.ClientSession:
        """One session a worker; those of recycled workers live on for their running answers."""
        if socket_path not in self._sessions:
            connector = aiohttp.UnixConnector(str(socket_path), limit=0)
            self._sessions[socket_path] = aiohttp.ClientSession(connector=connector)
        return self._sessions[socket_path]

    async def _forget_ended_workers(self) -> None:
        """A worker's folder goes after its last answer; before that its session is in use."""
        if len(self._sessions) > 1:
            for path in [path for path in self._sessions if not path.exists()]:
                if session := self._sessions.pop(path, None):
                    await session.close()


class EventReader:
    """Passes a stream event by event, without the usage event unless the caller asked for one.

    The delivered text is kept: it is what an answer that breaks off is charged by.
    """

    def __init__(self, call: Call) -> None:
        self._passes_usage = call.generation.wants_usage
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
            meter.take(self._usage)
        elif self._said:
            meter.completion_tokens = estimate("".join(self._said)).tokens
            meter.prompt_tokens = estimate_prompt(call.request)

    def _passes(self, event: bytes) -> bool:
        data = event.removeprefix(_EVENT)
        if data == DONE:
            self._is_complete = True
            return True
        try:
            content = orjson.loads(data)
        except orjson.JSONDecodeError:
            return True
        self._is_broken = self._is_broken or "error" in content
        choices = content.get("choices") or []
        if content.get("usage"):
            read_usage(content, self._usage)
            return bool(choices) or self._passes_usage
        self._said += [text for choice in choices if (text := said_in(choice))]
        return True


def _body(call: Call, offer: Offer) -> bytes:
    """The caller's bytes without our extras, and with what the hold rests on said aloud.

    A stream is asked for its usage, which is what gets charged, and the answer is bounded by what was put aside
    for it. Values that stay are passed on as they stand, however deep they are. Raises RequestInvalid.
    """
    try:
        fields = _top_level.decode(call.raw)
        options = msgspec.json.decode(fields.get("stream_options", b"null"), type=dict[str, Any] | None)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestInvalid(f"The body cannot be passed on: {error}", code="invalid_json") from None
    fields.pop("millrace", None)
    request = call.generation
    if request.is_stream and not request.wants_usage:
        fields["stream_options"] = msgspec.Raw(msgspec.json.encode((options or {}) | {"include_usage": True}))
    for name in _LIMITS:
        fields.pop(name, None)
    limit = "max_completion_tokens" if _says_completion_tokens(call) else "max_tokens"
    fields[limit] = msgspec.Raw(b"%d" % output_bound(request, offer))
    return msgspec.json.encode(fields)


def _says_completion_tokens(call: Call) -> bool:
    """Providers know the limit by one name or the other: it stays under the caller's; litellm translates ours."""
    return isinstance(call.request, ChatRequest) and call.request.max_completion_tokens is not None

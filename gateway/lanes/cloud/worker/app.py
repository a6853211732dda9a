"""The worker's HTTP application: limits its requests, and drops a request when its client disconnects."""

import asyncio
import os
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
import psutil

from gateway.lanes.cloud.worker import adapters
from gateway.lanes.cloud.worker.keys import KEYLESS, KeysFile, KeyUnavailable, usual_key_name
from gateway.lanes.cloud.worker.providers import CloudConfiguration, CloudModel
from gateway.lanes.cloud.worker.relay import Relay
from gateway.lanes.cloud.worker.requests import Request, parse
from runtime.workers.errors import Refusal
from runtime.workers.exchange import Exchange, HungUp, Message, Receive, Send, until_hung_up
from runtime.workers.health import Health
from runtime.workers.logbook import note

PLACE_S = 0.5
Kind = Literal["chat", "completion"]
_KINDS: dict[str, Kind] = {"/v1/chat/completions": "chat", "/v1/completions": "completion"}


@dataclass
class CloudApp:
    """Answers the gateway over OpenAI's HTTP API with the configured providers' answers."""

    configuration: CloudConfiguration
    requests: int = 0
    in_flight: int = 0
    _started: float = field(default_factory=time.monotonic)
    _process: psutil.Process = field(default_factory=psutil.Process)

    def __post_init__(self) -> None:
        self._keys = KeysFile(Path(self.configuration.keys_file))
        self._places = asyncio.Semaphore(self.configuration.limits.requests_in_flight_max)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        exchange = Exchange(receive, send)
        method, path = scope["method"], scope["path"]
        if method == "GET" and path == "/healthz":
            await exchange.answer(200, msgspec.json.encode(self.health()))
        elif method == "POST" and path in _KINDS:
            await self._admit(exchange, _KINDS[path])
        else:
            await exchange.refuse(Refusal(404, "not_found", f"{method} {path} not found."))

    def health(self) -> Health:
        return Health(
            pid=os.getpid(),
            requests=self.requests,
            in_flight=self.in_flight,
            rss_bytes=self._process.memory_info().rss,
            age_s=time.monotonic() - self._started,
            cpu_s=time.process_time(),
        )

    async def _admit(self, exchange: Exchange, kind: Kind) -> None:
        limits = self.configuration.limits
        try:
            # A client may send its next request a moment before its last one is cleaned up.
            async with asyncio.timeout(PLACE_S):
                await self._places.acquire()
        except TimeoutError:
            busy = (
                f"The cloud worker is at its limit of {limits.requests_in_flight_max} requests. Try again shortly."
            )
            await exchange.refuse(Refusal(503, "cloud_worker_busy", busy, retry_after="1"))
            return
        self.requests += 1
        self.in_flight += 1
        try:
            body = await exchange.body(limits.body_bytes_max, limits.body_s)
            await until_hung_up(exchange, self._serve(exchange, body, kind))
        except Refusal as refusal:
            await exchange.refuse(refusal)
        except HungUp:
            return
        finally:
            self.in_flight -= 1
            self._places.release()

    async def _serve(self, exchange: Exchange, body: bytes, kind: Kind) -> None:
        """Convert every failure to an error answer or an error event."""
        request: Request | None = None
        try:
            request = parse(body, kind)
            model = self._model(request.model)
            provider = adapters.provider_of(model.litellm_model)
            secrets = self._secrets(model, provider)
            await Relay(request, model, provider, secrets, self.configuration.timeouts).run(exchange)
        except Refusal as refusal:
            _note_refusal(refusal, request)
            await exchange.refuse(refusal)
        except Exception as error:  # noqa: BLE001  # a bug here must end this request only
            place = traceback.extract_tb(error.__traceback__)[-1]
            note("failed", error=type(error).__name__, place=f"{place.filename}:{place.lineno}")
            await exchange.refuse(Refusal(500, "cloud_worker_failed", "The cloud worker had an internal error."))

    def _model(self, public_name: str) -> CloudModel:
        try:
            return self.configuration.models[public_name]
        except KeyError:
            message = f"The model {public_name} is not configured for the cloud lane."
            raise Refusal(404, "model_not_found", message, param="model") from None

    def _secrets(self, model: CloudModel, provider: str) -> dict[str, str]:
        """Return litellm's secret arguments, read per request: a rotated key applies from the next request on."""
        names = dict(model.secret_parameters)
        if key_name := model.key_name or _usual_key_name(model, provider):
            names["api_key"] = key_name
        try:
            return {argument: self._keys.value_of(name) for argument, name in names.items()}
        except KeyUnavailable as error:
            note("no_key", reason=str(error))
            message = f"This gateway has no usable key for {provider}. Ask an admin: the log says why."
            raise Refusal(401, "provider_key_missing", message) from None


def _usual_key_name(model: CloudModel, provider: str) -> str | None:
    """Return the key's name; None if another address could get the key, or if the provider uses no such key."""
    if model.base_url or model.secret_parameters or provider in KEYLESS:
        return None
    return usual_key_name(provider)


def _note_refusal(refusal: Refusal, request: Request | None) -> None:
    cause = type(refusal.__cause__).__name__ if refusal.__cause__ else None
    model = request.model if request else None
    note("refused", status=refusal.status, code=refusal.code, model=model, cause=cause)

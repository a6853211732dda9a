"""The worker's HTTP application: each request goes to its provider."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from gateway.lanes.cloud.worker import adapters
from gateway.lanes.cloud.worker.keys import KEYLESS, KeysFile, KeyUnavailable, usual_key_name
from gateway.lanes.cloud.worker.providers import CloudConfiguration, CloudModel, ProviderLimits
from gateway.lanes.cloud.worker.relay import Relay
from gateway.lanes.cloud.worker.requests import parse
from runtime.workers.app import KINDS, Kind, WorkerApp
from runtime.workers.errors import Refusal
from runtime.workers.exchange import Exchange, Message, Receive, Send
from runtime.workers.logbook import note


@dataclass
class CloudApp(WorkerApp):
    """Answers the gateway over OpenAI's HTTP API with the configured providers' answers."""

    configuration: CloudConfiguration
    name = "cloud worker"
    busy = 503, "cloud_worker_busy"
    failed = 500, "cloud_worker_failed"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._keys = KeysFile(Path(self.configuration.keys_file))

    @property
    def limits(self) -> ProviderLimits:
        return self.configuration.limits

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        exchange = Exchange(receive, send)
        method, path = scope["method"], scope["path"]
        if method == "GET" and path == "/healthz":
            await exchange.answer(200, msgspec.json.encode(self.health()))
        elif method == "POST" and path in KINDS:
            await self.admit(exchange, partial(self._serve_body, exchange, KINDS[path]))
        else:
            await exchange.refuse(Refusal(404, "not_found", f"{method} {path} not found."))

    async def _serve_body(self, exchange: Exchange, kind: Kind, body: bytes) -> None:
        request = parse(body, kind)
        try:
            model = self._model(request.model)
            provider = adapters.provider_of(model.litellm_model)
            secrets = self._secrets(model, provider)
            await Relay(request, model, provider, secrets, self.configuration.timeouts).run(exchange)
        except Refusal as refusal:
            refusal.model = request.model
            raise

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

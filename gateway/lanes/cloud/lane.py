"""The cloud lane: providers through the cloud worker's unix socket, paid by the token."""

import contextlib
import math
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from accounting.errors import PriceUnknown
from accounting.metering.prices import PriceBook, PricedModel
from accounting.money import Price
from gateway.dialects.openai import GENERATES
from gateway.errors import LaneBusy, LaneUnreachable
from gateway.lanes.aliases import Aliases, names_with, offers_of
from gateway.lanes.base import Answer, Call, Offer
from gateway.lanes.bounded_body import paid_body
from gateway.lanes.cloud.logprobs import gives_logprobs
from gateway.lanes.cloud.worker.keys import keys_trouble
from gateway.lanes.cloud.worker.program import CloudWorker
from gateway.lanes.features import ALL_FEATURES, UNPRICED, Feature
from gateway.lanes.relay import relay
from gateway.lanes.upstream import Upstream
from gateway.settings import CloudSettings, LaneName
from runtime.errors import LaneBrokeOff
from runtime.http.client import Client
from runtime.workers.supervisor import WorkerUnavailable

# The worker enforces the timeouts of the settings and names the one that expired.
# A stuck worker is abandoned this much later.
_WORKER_LATE_S = 60.0
_WORKER_LATE_IN_ALL_S = 200.0
OPERATORS = "operators"
"""The price book's name for prices that were set at run time."""

_FEATURES = ALL_FEATURES - UNPRICED


class CloudLane:
    """Offers the configured models that have a price; every call holds a lease on the worker until it ends."""

    name: LaneName = "cloud"

    def __init__(
        self,
        settings: CloudSettings,
        worker: CloudWorker,
        prices: PriceBook,
        aliases: Callable[[], Aliases] = dict,
    ) -> None:
        """`aliases` returns the models that names currently route to."""
        self._settings = settings
        self._aliases = aliases
        self._worker = worker
        self._listed = self._prices = prices
        self._client = Client()

    def warm(self) -> None:
        """Start the worker before the first request. Returns immediately."""
        self._worker.warm()

    async def stop(self) -> None:
        await self._client.close()
        await self._worker.stop()

    def troubles(self) -> list[str]:
        """Problems that make all of its models unavailable, for operators."""
        wants_keys = self._settings.keys_file or any(model.key for model in self._settings.models.values())
        found = (self._worker.trouble, keys_trouble(self._worker.keys_file) if wants_keys else None)
        return [trouble for trouble in found if trouble]

    def models(self) -> list[str]:
        return names_with(self._aliases(), self._settings.models.keys())

    def has(self, model: str) -> bool:
        """Return whether this is a model of the settings; an alias is not."""
        return model in self._settings.models

    def offers(self, model: str) -> list[Offer]:
        return offers_of(self._aliases(), model, self._own_offers)

    @property
    def version(self) -> tuple[PriceBook, Aliases]:
        """What offers are made of, beside the settings; both are replaced as a whole."""
        return self._prices, self._aliases()

    def _own_offers(self, model: str) -> list[Offer]:
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
                features=_features(entry.model),
                kinds=GENERATES,
                context_tokens=price.max_input_tokens,
                price=price,
                clearance=entry.clearance,
                region=entry.region,
                quantization=entry.quantization,
                keeps_data=entry.keeps_data,
            )
        ]

    def book_with(self, prices: Mapping[str, Price]) -> PriceBook:
        """The settings' prices with others over them, by the names that callers use."""
        return self._listed.over({("cloud", name): price for name, price in prices.items()}, OPERATORS)

    def prices_by(self, book: PriceBook) -> dict[str, PricedModel]:
        """The price of each model in a price book, if it is listed."""
        found = {}
        for name, entry in self._settings.models.items():
            with contextlib.suppress(PriceUnknown):
                found[name] = book.find("cloud", entry.model, name=name)
        return found

    def use(self, book: PriceBook) -> None:
        """Set the prices for all later offers."""
        self._prices = book

    async def open(self, call: Call, offer: Offer, _wait_s: float = math.inf) -> Answer:
        body = paid_body(call, offer)
        try:
            return await self._open(call, body)
        except LaneUnreachable:
            # The worker died between two health checks. It has seen nothing, so a fresh one may be asked.
            return await self._open(call, body)

    async def _open(self, call: Call, body: bytes) -> Answer:
        stack = AsyncExitStack()
        try:
            lease = await stack.enter_async_context(self._worker.acquire())
        except WorkerUnavailable as error:
            raise LaneBusy(str(error), retry_after_s=math.ceil(error.retry_after_s)) from None
        try:
            return await relay(self._upstream(lease.socket_path, call), call, body, stack)
        except (LaneUnreachable, LaneBrokeOff):
            await self._worker.report_unreachable(lease)
            raise

    def _upstream(self, socket_path: Path, call: Call) -> Upstream:
        """Return the upstream with its timeouts; a whole answer begins only when it is complete."""
        settings = self._settings
        in_all_s = settings.total_s + _WORKER_LATE_IN_ALL_S
        is_stream = call.generation.is_stream
        return Upstream(
            name="cloud",
            client=self._client,
            base_url="http://worker/v1",
            first_byte_s=settings.first_byte_s + _WORKER_LATE_S if is_stream else in_all_s,
            silence_s=settings.silence_s + _WORKER_LATE_S,
            total_s=in_all_s,
            is_paid=True,
            socket_path=str(socket_path),
        )


def _features(litellm_model: str) -> frozenset[Feature]:
    """The features of a provider's models that this gateway can price."""
    return _FEATURES if gives_logprobs(litellm_model) else _FEATURES - {"logprobs", "echo_logprobs"}

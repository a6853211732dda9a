"""The models for sale, as far as our own gateway can serve them now, and their listings."""

import asyncio
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from accounting.errors import TokenizerMismatch
from accounting.metering.tokenizers import Pinned, load_counter
from market.protocol.counting.token_count import Counting
from market.protocol.listings.hours import WeeklyWindow
from market.protocol.listings.idle import IdleRule
from market.protocol.listings.listing import Capacity, Datacenter, DataPolicy, Listing, Quantization
from market.protocol.listings.prices import Prices
from market.protocol.records.amounts import Amount
from market.seller.live_listings import SellableModel
from market.seller.own_gateway import Idle, SpareModel
from market.settings.seller import SellingSettings, SoldModel

log = structlog.get_logger(__name__)

_NAME_CHARS = 78
_ALIASES: dict[Quantization, tuple[str, ...]] = {
    "int4": ("q4", "q4_0", "q4_k_m"),
    "int8": ("q8_0",),
    "fp4": (),
    "mxfp4": (),
    "nvfp4": (),
    "fp6": (),
    "fp8": (),
    "mxfp8": (),
    "fp16": ("f16", "float16"),
    "bf16": ("bfloat16",),
    "fp32": ("f32", "float32"),
}


@dataclass(frozen=True, slots=True)
class Spare:
    """A model, and how many market requests it could serve at once."""

    sellable: SellableModel
    model: SpareModel
    slots: int


class SellableModels:
    """Knows the tokenizers of what is sold, each read once."""

    def __init__(self, sold: tuple[SoldModel, ...]) -> None:
        self._sold = sold
        self._known: dict[tuple[str, str], SellableModel] = {}
        self._unsold: set[str] = set()

    async def spare(self, idle: Idle) -> list[Spare]:
        """Return what can be sold now. New tokenizers, which are megabytes, are read in a thread."""
        found = []
        by_id = {model.id: model for model in idle.models}
        for sold in self._sold:
            model = by_id.get(sold.model)
            sellable = await asyncio.to_thread(self._sellable, sold, model) if model else None
            if model is None or sellable is None:
                continue
            # Slots held by our own preemptible requests can be offered, too; other requests' use of them is not known.
            slots = min(model.slots, model.slots_free + idle.preemptible_jobs)
            found.append(Spare(sellable, model, min(slots, sold.slots_max or slots)))
        return found

    def _sellable(self, sold: SoldModel, model: SpareModel) -> SellableModel | None:
        path = sold.tokenizer or (Path(model.tokenizer_path) if model.tokenizer_path else None)
        weights = sold.weights_sha256 or model.weights_sha256
        if path is None or weights is None:
            self._say_unsold(sold, "its tokenizer.json" if path is None else "the SHA-256 of its weights")
            return None
        key = (sold.model, f"{path}\n{weights}")
        if key not in self._known:
            sellable = self._read(sold, path, weights)
            if sellable is None:
                return None
            self._known[key] = sellable
        return self._known[key]

    def _read(self, sold: SoldModel, path: Path, weights: str) -> SellableModel | None:
        try:
            sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
            counter = load_counter(Pinned(path, sha256))
        except (OSError, TokenizerMismatch) as error:
            log.warning("model cannot be sold", model=sold.model, why=str(error))
            return None
        return SellableModel(sold, Counting(counter), sha256, weights)

    def _say_unsold(self, sold: SoldModel, lacking: str) -> None:
        """Log once per model, because the next look is seconds away."""
        if sold.model not in self._unsold:
            self._unsold.add(sold.model)
            log.warning("model cannot be sold", model=sold.model, why=f"{lacking} is unknown; set it")


def listing_name(market_id: str) -> str:
    """Return a record's name for a model: characters that names may not have are replaced; its hash keeps it
    unique.
    """
    plain = re.sub(r"[^A-Za-z0-9._@:-]", "-", market_id)[:_NAME_CHARS]
    return f"{plain}-{hashlib.sha256(market_id.encode()).hexdigest()[:16]}"


def listing_of(
    settings: SellingSettings, spare: Spare, sealing_key: bytes, endpoint: str | None, *, is_ready: bool
) -> Listing:
    """Return a model's listing for the market."""
    sold, model = spare.sellable.sold, spare.model
    context = min(sold.context_tokens or 2**30, model.context_tokens or sold.context_tokens or 4096)
    return Listing(
        id=sold.market_id,
        hugging_face_id=sold.hugging_face_id,
        weights_sha256=spare.sellable.weights_sha256,
        tokenizer_sha256=spare.sellable.tokenizer_sha256,
        quantization=sold.quantization or _quantization_of(model.quantization or ""),
        context_length=context,
        max_output_length=min(sold.max_output_tokens or context, context),
        pricing=prices_of(sold),
        datacenters=(Datacenter(settings.country_code, settings.region),),
        data_policy=DataPolicy(
            settings.retains_prompts, settings.may_publish, settings.training, settings.retention_days
        ),
        capacity=Capacity(max(1, spare.slots), sold.tokens_per_second, 0, settings.min_completion_tokens),
        sealing_key=sealing_key.hex(),
        endpoint=endpoint,
        engine="millrace",
        supported_features=sold.features,
        refuses=tuple(settings.refuses),
        hours=windows_of(settings),
        idle=rule_of(settings),
        is_ready=is_ready,
    )


def prices_of(sold: SoldModel) -> Prices:
    prompt = Amount(sold.prompt_usd_per_mtok)
    return Prices(prompt, Amount(sold.completion_usd_per_mtok), prompt, Amount(sold.request_usd))


def windows_of(settings: SellingSettings) -> tuple[WeeklyWindow, ...]:
    return tuple(msgspec.convert(window.model_dump(), WeeklyWindow) for window in settings.hours)


def rule_of(settings: SellingSettings) -> IdleRule:
    return IdleRule(settings.queue_empty_minutes, settings.gpu_percent_max, settings.on_battery)


def _quantization_of(label: str) -> Quantization:
    plain = label.lower()
    return next((known for known, others in _ALIASES.items() if plain in (known, *others)), "unknown")

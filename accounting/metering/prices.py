"""Look up what a model costs on a lane, and in which list that price is.

Cloud prices come from the JSON list in the litellm package, read as a file. Importing litellm takes seconds and
calls the network, so only the sandboxed cloud worker does that.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property, lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from accounting.chart import provider_id
from accounting.errors import PriceUnknown
from accounting.money import Nano, Price, charge, nano_per_million

CLOUD_LANE = "cloud"

# Prices are looked up with every request, and parsing the list's decimals takes time.
_FOUND_MAX = 4096
_LIST_NAME = "model_prices_and_context_window_backup.json"
_LONG_CONTEXT = re.compile(r"input_cost_per_token_above_([0-9]{1,6})k_tokens")


@dataclass(frozen=True, slots=True)
class LongContext:
    """Another price for requests with a prompt of more than `above_tokens`. It applies to all their tokens."""

    above_tokens: int
    price: Price


@dataclass(frozen=True, slots=True)
class PricedModel:
    """One entry of the price book. `source` names its list. Limits are None if unknown.

    On lanes of own machines, `compute_nano` is what a second of a machine costs its owner, in nano-USD. `reasons`
    tells that the model may reason before it answers, and bill for reasoning that it does not show.
    """

    lane: str
    model: str
    source: str
    price: Price
    provider: str = ""
    long_context: LongContext | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    compute_nano: int | None = None
    reasons: bool = False

    @property
    def id(self) -> str:
        """The name of this version of the price: a hash of the rates that are charged, and of nothing else."""
        return _price_id(self.lane, self.model, self.provider, self.price, self.long_context, self.compute_nano)

    def charge_for(
        self, prompt_tokens: int, cached_tokens: int, completion_tokens: int, reasoning_tokens: int = 0
    ) -> Nano:
        """Return what such a request costs, in nano-USD. Raises AmountInvalid."""
        price = self.price_for(prompt_tokens)
        return charge(price, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens)

    def price_for(self, prompt_tokens: int) -> Price:
        """Return the price of a request with a prompt of this length."""
        if self.long_context is not None and prompt_tokens > self.long_context.above_tokens:
            return self.long_context.price
        return self.price


@lru_cache(maxsize=1024)
def _price_id(
    lane: str, model: str, provider: str, price: Price, long_context: LongContext | None, compute_nano: int | None
) -> str:
    rates = (*_rates(price), *((long_context.above_tokens, *_rates(long_context.price)) if long_context else ()))
    content = json.dumps([lane, model, provider, rates, compute_nano], separators=(",", ":"))
    return f"price-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def _rates(price: Price) -> tuple[int | None, ...]:
    return (price.prompt_nano, price.cached_nano, price.completion_nano, price.reasoning_nano)


class CloudPrices:
    """The providers' list: prices in USD per token, as litellm publishes them. Read on first use (about 20 ms)."""

    def __init__(self, path: Path, list_version: str) -> None:
        self._path = path
        self._version = list_version

    @classmethod
    def installed(cls) -> "CloudPrices":
        """Return the list in the installed litellm package.

        Raises:
            ModuleNotFoundError: the package is not installed.
        """
        spec = find_spec("litellm")
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError("litellm is not installed, so no cloud price is known", name="litellm")
        return cls(Path(spec.origin).with_name(_LIST_NAME), f"litellm-{version('litellm')}")

    def find(self, model: str) -> PricedModel | None:
        """Return the entry of a model, named as in litellm: with or without its provider in front.

        Return None if the list does not have it, or has no plain price per token for it (images, audio, seconds).
        """
        provider, _, rest = model.partition("/")
        for name in (model, rest):
            entry = self._entries.get(name)
            if entry is not None and (name == model or entry.get("litellm_provider") == provider):
                return self._read(model, entry)
        return None

    @cached_property
    def _entries(self) -> dict[str, dict[str, Any]]:
        entries: dict[str, dict[str, Any]] = json.loads(self._path.read_bytes(), parse_float=Decimal)
        entries.pop("sample_spec", None)
        return entries

    def _read(self, model: str, entry: dict[str, Any]) -> PricedModel | None:
        price = _price(entry, "")
        if price is None:
            return None
        return PricedModel(
            lane=CLOUD_LANE,
            model=model,
            source=self._version,
            price=price,
            provider=provider_id(entry["litellm_provider"]),
            long_context=_long_context(entry),
            max_input_tokens=entry.get("max_input_tokens"),
            max_output_tokens=entry.get("max_output_tokens"),
            reasons=bool(entry.get("supports_reasoning")),
        )


def _price(entry: Mapping[str, Any], tier: str) -> Price | None:
    prompt = entry.get(f"input_cost_per_token{tier}")
    completion = entry.get(f"output_cost_per_token{tier}", 0 if entry.get("mode") == "embedding" else None)
    if prompt is None or completion is None:
        return None
    cached = entry.get(f"cache_read_input_token_cost{tier}", prompt)
    prompt_nano, cached_nano, completion_nano = (
        nano_per_million(str(usd)) for usd in (prompt, cached, completion)
    )
    # Reasoning has an own price only if no tier does: the list names none for tiers, and reasoning may be most of
    # # an answer.
    reasoning = None if tier else entry.get("output_cost_per_reasoning_token")
    reasoning_nano = completion_nano if reasoning is None else nano_per_million(str(reasoning))
    is_other = reasoning_nano != completion_nano
    return Price(prompt_nano, cached_nano, completion_nano, reasoning_nano if is_other else None)


def _long_context(entry: Mapping[str, Any]) -> LongContext | None:
    for field in entry:
        if match := _LONG_CONTEXT.fullmatch(field):
            price = _price(entry, f"_above_{match[1]}k_tokens")
            return LongContext(int(match[1]) * 1000, price) if price else None
    return None


class PriceBook:
    """Find prices: the owner's first, then the providers'.

    Args:
        own: by lane and name, in nano-USD (nano compute units on lanes of own machines) per million tokens;
            the name `*` stands for every other name of its lane.
        own_version: the owner's name for this list.
        cloud: the providers' list.
    """

    def __init__(self, own: Mapping[tuple[str, str], Price], own_version: str, cloud: CloudPrices) -> None:
        self._own = {key: (price, own_version) for key, price in own.items()}
        self._cloud = cloud
        self._found: dict[tuple[str, str, str | None], PricedModel] = {}

    def over(self, prices: Mapping[tuple[str, str], Price], version: str) -> "PriceBook":
        """Return a book in which these prices precede the owner's. This book does not change."""
        book = PriceBook(prices, version, self._cloud)
        book._own = self._own | book._own
        return book

    def find(self, lane: str, model: str, *, name: str | None = None) -> PricedModel:
        """Return what a model costs on a lane.

        Several names may stand for one model, each with another key, endpoint or price. `name` is the one in the
        owner's prices; by default it is the model. An own price for a cloud model replaces the provider's price,
        but not the model's limits in the list.

        Raises:
            PriceUnknown: no list has a price per token for it.
        """
        found = self._found.get((lane, model, name))
        if found is None:
            found = self._find(lane, model, name)
            if len(self._found) >= _FOUND_MAX:
                self._found.clear()
            self._found[lane, model, name] = found
        return found

    def _find(self, lane: str, model: str, name: str | None) -> PricedModel:
        own = self._own.get((lane, name or model)) or self._own.get((lane, "*"))
        listed = self._cloud.find(model) if lane == CLOUD_LANE else None
        if own is None:
            if listed is None:
                raise PriceUnknown(lane, model)
            return listed
        price, version = own
        if listed is None:
            return PricedModel(lane, model, version, price, provider=provider_id(model))
        return replace(listed, source=version, price=price, long_context=None)

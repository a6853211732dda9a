"""A request's needs of a lane, as numbers and sets. Token counts are estimates made without a tokenizer."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Literal

from msgspec import Struct

from accounting.money import NANO_PER_USD
from gateway.dialects.openai import Extras, Kind, MaxPrice, ProviderPreferences
from gateway.identity.caller import Caller
from gateway.lanes.base import Call
from gateway.lanes.features import Feature
from gateway.settings import LaneName
from gateway.settings.base import PRIVACY_RANK, Privacy
from runtime.errors import RequestInvalid

_PRICE_NANO_MAX = 10**15
_NO_FEATURES: frozenset[Feature] = frozenset()


@dataclass(frozen=True, slots=True)
class Preferences:
    """The request's `provider` object. Names are lower-case; prices in nano-USD per million tokens."""

    order: tuple[str, ...] = ()
    only: frozenset[str] | None = None
    ignore: frozenset[str] = frozenset()
    sort: Literal["price", "throughput", "latency"] | None = None
    prompt_nano_max: int | None = None
    completion_nano_max: int | None = None
    quantizations: frozenset[str] | None = None
    denies_data_collection: bool = False
    allows_fallbacks: bool = True


NO_PREFERENCES = Preferences()


class Need(Struct, frozen=True):
    """`output_tokens` is the request's limit, if any; `expected_tokens` is the answer's probable length."""

    model: str
    features: frozenset[Feature]
    prompt_tokens: int
    output_tokens: int | None
    expected_tokens: int = 256
    lane: LaneName | None = None
    kind: Kind = "chat"
    privacy: Privacy = "public"
    is_stream: bool = True
    preferences: Preferences = NO_PREFERENCES


def need_of(call: Call, caller: Caller, expected_tokens: int) -> Need:
    """Return the request's needs. Raises RequestInvalid for invalid preferences."""
    request = call.request
    extras, provider = request.millrace, request.provider
    features = call.features
    return Need(
        request.model,
        frozenset(features) if features else _NO_FEATURES,
        call.prompt_tokens,
        request.tokens_limit,
        expected_tokens,
        _lane(extras) if extras else None,
        call.kind,
        privacy_of(call, caller) if extras else caller.privacy,
        request.is_stream,
        _preferences(provider) if provider else NO_PREFERENCES,
    )


def _lane(extras: Extras) -> LaneName | None:
    """Return the requested lane; a resumption needs the cluster, which alone can continue after given tokens."""
    return "cluster" if extras.resume else extras.lane


def privacy_of(call: Call, caller: Caller) -> Privacy:
    """Return the label. A key's label is the minimum: a request may ask for more privacy, never for less."""
    extras, least = call.request.millrace, caller.privacy
    if extras is None or extras.privacy is None or PRIVACY_RANK[extras.privacy] <= PRIVACY_RANK[least]:
        return least
    return extras.privacy


def _preferences(given: ProviderPreferences) -> Preferences:
    prices = given.max_price or MaxPrice()
    return Preferences(
        order=tuple(name.lower() for name in given.order or ()),
        only=_names(given.only),
        ignore=_names(given.ignore) or frozenset(),
        sort=given.sort,
        prompt_nano_max=_nano(prices.prompt, "prompt"),
        completion_nano_max=_nano(prices.completion, "completion"),
        quantizations=_names(given.quantizations),
        denies_data_collection=given.data_collection == "deny" or given.zdr is True,
        allows_fallbacks=given.allow_fallbacks is not False,
    )


def _names(given: Sequence[str] | None) -> frozenset[str] | None:
    return None if given is None else frozenset(name.lower() for name in given)


def _nano(usd_per_mtok: str | float | None, field: str) -> int | None:
    """Convert a client's price in USD per million tokens to nano-USD."""
    if usd_per_mtok is None:
        return None
    try:
        nano = Decimal(str(usd_per_mtok)) * NANO_PER_USD
        if not 0 <= nano <= _PRICE_NANO_MAX:
            raise ValueError
    except (InvalidOperation, ValueError):
        param = f"provider.max_price.{field}"
        text = f"{param}: a price in USD per million tokens is expected, such as 0.5"
        raise RequestInvalid(text, param=param, code="invalid_value") from None
    return int(nano)

"""This gateway's sellable models, why others cannot be sold, their recent speed, and a suggested price."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Annotated, Any

import msgspec

from accounting.money import Price
from accounting.rules.market import BPS
from cluster.plans.forecast import Prediction
from gateway.advice.break_even import own_nano_per_mtok
from gateway.advice.question import OwnCost
from gateway.advice.service import cloud_prices
from gateway.app_state import Controller, IdleWatch, Lanes, RequestLog, Settings, bundle
from gateway.billing.request_filter import RequestFilter
from gateway.billing.request_log import RequestEntry
from gateway.console.figures.cloud_prices import CloudEquals
from gateway.dialects.openai import GENERATES
from gateway.lanes.base import Offer
from gateway.lanes.preemptible.admission import OWN
from gateway.lanes.preemptible.spare import SpareModel
from market.errors import ListingInvalid, RecordInvalid
from market.protocol.listings.listing import read_listing
from market.protocol.records.envelope import Saying, sign
from market.settings.seller import SellingSettings

_LOOKED_AT = 60
_LISTED_MS = 300_000


CLOUD_PERCENT = 60
"""Percentage of the cheapest cloud price: buyers need a discount to use a third party's machine."""
COST_TIMES = 2
"""Multiple of the power cost after the fee, if no cloud price is known."""
_ANSWER_TIMES = 4
_STEP_NANO = 10**6
_TOKENS_MIN = 8


@dataclass(frozen=True, slots=True)
class SalesPace:
    """Recent speed of a model: tokens per second, and seconds to the first token; medians over `answers`."""

    tokens_per_s: float
    first_token_s: float
    answers: int


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Prices per million tokens, and the reason; `floor_nano` is the cost of a million mixed tokens plus fee."""

    prompt_nano: int
    completion_nano: int
    why: str
    floor_nano: int | None


@dataclass(frozen=True, slots=True)
class Here:
    """A local model. `lacks` is why it cannot be sold; empty if it can."""

    name: str
    spare: SpareModel | None
    lacks: str
    pace: SalesPace | None


@dataclass(frozen=True, slots=True)
class _Machine:
    settings: Settings
    lanes: Lanes
    controller: Controller
    idle: IdleWatch
    log: RequestLog


Machine = Annotated[_Machine, bundle(_Machine)]
"""What is known of the local models: their lanes, whether they are idle, and their recent answers."""


async def models_here(machine: Machine, sold: Sequence[Mapping[str, Any]] = ()) -> list[Here]:
    """Return every local model that generates text, those that can be sold first.

    `sold` are the models in the settings file.
    """
    spare = {model.id: model for model in (await machine.idle.state()).models}
    lanes = [lane for name, lane in machine.lanes.items() if name in OWN]
    offers = {name: list(lane.offers(name)) for lane in lanes for name in lane.models()}
    texts = {name: some for name, some in offers.items() if any(not o.kinds.isdisjoint(GENERATES) for o in some)}
    paces = await asyncio.to_thread(lambda: {name: pace_now(machine.log, name) for name in texts})
    named = {str(one.get("model")): one for one in sold}
    found = [
        Here(name, spare.get(name), _lacks(spare.get(name), some, named.get(name, {})), paces[name])
        for name, some in texts.items()
    ]
    return sorted(found, key=lambda here: (bool(here.lacks), here.name))


def pace_now(log: RequestLog, model: str) -> SalesPace | None:
    """Return the pace of the latest local answers. Reads the request log."""
    rows = [
        row
        for lane in OWN
        for row in log.page(RequestFilter(model=model, lane=lane, status=(200, 200)), _LOOKED_AT).rows
    ]
    return pace_of(rows)


def cloud_prices_of(settings: Settings, lanes: Lanes, model: str) -> list[Price]:
    """Return what clouds charge for the same model, as far as a price is known."""
    alike = [each.price for each in cloud_prices(settings.cloud, lanes, model)]
    equals = CloudEquals(lanes, settings.costs.compared_with)
    return [*alike, *equals.prices([model])[model]]


def _lacks(spare: SpareModel | None, offers: Sequence[Offer], named: Mapping[str, Any]) -> str:
    if spare is None:
        return next((why for why in map(_closed_why, offers) if why), "it is serving other requests now")
    if spare.tokenizer_path is None and not named.get("tokenizer"):
        return "its tokenizer.json is unknown: set it in selling.models"
    if spare.weights_sha256 is None and not named.get("weights_sha256"):
        return "its backend does not report the SHA-256 of its weights: set it in selling.models"
    return ""


def _closed_why(offer: Offer) -> str:
    if offer.state != "ready":
        return f"it is {offer.state}"
    if not offer.is_resident:
        return "it is not loaded: load it first"
    if offer.is_gateway:
        return "it belongs to another gateway, which has its own requests"
    if offer.price is not None:
        return "it is a paid model"
    if offer.clearance != "private" or offer.keeps_data:
        return "its server may not see private requests, or keeps data; buyers are promised privacy"
    return ""


async def preview(machine: Machine, settings: SellingSettings, model: str) -> str:
    """Return why the model cannot be listed now, or an empty text.

    The listing is made by the agent's functions and checked by those of buyers.
    """
    # Selling code is imported only when a listing is made: most gateways never do that.
    from market.protocol.identity.keys import identity_of, signer_of
    from market.seller.own_gateway import Idle as AgentIdle
    from market.seller.sellable_models import SellableModels, listing_name, listing_of

    idle = await machine.idle.state()
    sellable_models = SellableModels(tuple(one for one in settings.models if one.model == model))
    spares = await sellable_models.spare(msgspec.convert(asdict(idle), AgentIdle))
    if not spares:
        here = next((one for one in await models_here(machine) if one.name == model), None)
        return here.lacks if here and here.lacks else "this gateway has no such model with a free slot now"
    signer = signer_of(b"\0" * 32)  # a throwaway key: the listing is only read here
    listing = listing_of(settings, spares[0], signer.public_key, None, is_ready=True)
    made_ms = time.time_ns() // 10**6
    name = listing_name(spares[0].sellable.sold.market_id)
    saying = Saying(
        "listing", identity_of(signer.public_key), name, made_ms, made_ms, listing, made_ms + _LISTED_MS
    )
    try:
        read_listing(sign(saying, signer), allows_loopback=settings.allows_loopback)
    except (ListingInvalid, RecordInvalid) as error:
        return f"buyers would reject this listing: {error}"
    return ""


def pace_of(rows: Sequence[RequestEntry]) -> SalesPace | None:
    """Return the pace of streamed answers long enough to measure; None if there are none."""
    rates, firsts = [], []
    for row in rows:
        took_ms = row.duration_ms - (row.ttft_ms or row.duration_ms)
        if row.ttft_ms is None or row.completion_tokens < _TOKENS_MIN or took_ms <= 0:
            continue
        rates.append((row.completion_tokens - 1) * 1000 / took_ms)
        firsts.append(row.ttft_ms / 1000)
    return SalesPace(median(rates), median(firsts), len(rates)) if rates else None


def power_nano_per_mtok(cost: OwnCost, machines: int, pace: SalesPace | None) -> int | None:
    """Return the power cost of a million tokens, three prompt tokens per output token; None if unknown."""
    if pace is None or pace.tokens_per_s <= 0:
        return None
    predicted = Prediction(
        token_s=1 / pace.tokens_per_s,
        tokens_per_s=pace.tokens_per_s,
        streams=1,
        in_flight=1,
        first_token_s=pace.first_token_s,
    )
    return own_nano_per_mtok(cost, max(1, machines), predicted)


def share_nano(price_nano: int, fee_bps: int) -> int:
    """Return the seller's share of a price: the marketplace fee is rounded down with each sale."""
    return price_nano - price_nano * fee_bps // BPS


def suggested(cloud: Sequence[Price], power_nano: int | None, fee_bps: int) -> Suggestion | None:
    """Return a price; None if neither a cloud price nor the own cost is known."""
    floor_nano = None if power_nano is None else -(-power_nano * BPS // max(1, BPS - fee_bps))
    if beside := cheapest(cloud):
        prompt, answer = (
            _rounded(nano * CLOUD_PERCENT // 100) for nano in (beside.prompt_nano, beside.completion_nano)
        )
        if floor_nano is None or mix_nano(Price(prompt, prompt, answer)) >= floor_nano:
            return Suggestion(prompt, answer, f"{CLOUD_PERCENT} % of the cheapest cloud price", floor_nano)
        why = "power cost plus fee, which is more than a buyer saves compared with the cloud"
        return _from_mix(floor_nano, why, floor_nano)
    if floor_nano is None:
        return None
    return _from_mix(
        floor_nano * COST_TIMES, f"{COST_TIMES} times power cost plus fee; no cloud price known", floor_nano
    )


def cheapest(cloud: Sequence[Price]) -> Price | None:
    """Return the cheapest price of the mix; free cloud offers are ignored."""
    return min((price for price in cloud if mix_nano(price)), key=mix_nano, default=None)


def mix_nano(price: Price) -> int:
    """Return the price of a million tokens, three prompt tokens per output token."""
    return (3 * price.prompt_nano + price.completion_nano) // 4


def _from_mix(nano: int, why: str, floor_nano: int) -> Suggestion:
    """Price output tokens at four times the prompt price, so that the mix has this price."""
    prompt = _rounded(-(-nano * 4 // (3 + _ANSWER_TIMES)))
    return Suggestion(prompt, prompt * _ANSWER_TIMES, why, floor_nano)


def _rounded(nano: int) -> int:
    """Round up to a tenth of a cent, for readability."""
    return -(-nano // _STEP_NANO) * _STEP_NANO

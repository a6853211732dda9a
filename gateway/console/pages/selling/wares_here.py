"""What this gateway has to sell: its own models, what each lacks to be sold, and how fast it answered lately."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from accounting.money import Price
from gateway.advice.service import cloud_prices
from gateway.console.access import Visitor
from gateway.console.figures.cloud_prices import CloudEquals
from gateway.console.pages.selling.asking import idle_now
from gateway.console.pages.selling.suggesting import Pace, pace_of
from gateway.guests.admission import OWN
from gateway.guests.spare import SpareModel
from gateway.lanes.base import Offer
from gateway.openai import GENERATES
from gateway.records.request_filter import RequestFilter
from gateway.services import Services
from gateway.settings import SellingSettings
from market.errors import ListingInvalid, RecordInvalid
from market.listings.listing import Listing, read_listing
from market.records.envelope import Saying, sign

_LOOKED_AT = 60
_LISTED_MS = 300_000


@dataclass(frozen=True, slots=True)
class Here:
    """A model of own machines. `lacks` is why nobody could be sold it; empty where it can be sold."""

    name: str
    spare: SpareModel | None
    lacks: str
    pace: Pace | None


async def models_here(visitor: Visitor, sold: Sequence[Mapping[str, Any]] = ()) -> list[Here]:
    """Every model that own machines generate text with, those that can be sold first.

    `sold` is what the settings say of models, as the file has it.
    """
    services, idle = visitor.services, await idle_now(visitor)
    spare = {model.id: model for model in idle.models}
    lanes = [lane for name, lane in services.lanes.items() if name in OWN]
    offers = {name: list(lane.offers(name)) for lane in lanes for name in lane.models()}
    texts = {name: some for name, some in offers.items() if any(not o.kinds.isdisjoint(GENERATES) for o in some)}
    paces = await asyncio.to_thread(lambda: {name: pace_now(services, name) for name in texts})
    named = {str(one.get("model")): one for one in sold}
    found = [
        Here(name, spare.get(name), _lacks(spare.get(name), some, named.get(name, {})), paces[name])
        for name, some in texts.items()
    ]
    return sorted(found, key=lambda here: (bool(here.lacks), here.name))


def pace_now(services: Services, model: str) -> Pace | None:
    """By the last answers of own machines. Asks the request log."""
    rows = [
        row
        for lane in OWN
        for row in services.request_log.page(
            RequestFilter(model=model, lane=lane, status=(200, 200)), _LOOKED_AT
        ).rows
    ]
    return pace_of(rows)


def cloud_prices_of(services: Services, model: str) -> list[Price]:
    """What clouds ask for the same model, as far as somebody named a price."""
    alike = [each.price for each in cloud_prices(services, model)]
    equals = CloudEquals(services.lanes, services.settings.costs.compared_with)
    return [*alike, *equals.prices([model])[model]]


def _lacks(spare: SpareModel | None, offers: Sequence[Offer], named: Mapping[str, Any]) -> str:
    if spare is None:
        return next((why for why in map(_closed_why, offers) if why), "it works for others just now")
    if spare.tokenizer_path is None and not named.get("tokenizer"):
        return "no tokenizer.json is known for it: name one in selling.models"
    if spare.weights_sha256 is None and not named.get("weights_sha256"):
        return "its backend does not tell the SHA-256 of its weights: name it in selling.models"
    return ""


def _closed_why(offer: Offer) -> str:
    if offer.state != "ready":
        return f"it is {offer.state}"
    if not offer.is_resident:
        return "it is not in memory: load it first"
    if offer.is_gateway:
        return "it is another gateway's, which has requests of its own"
    if offer.price is not None:
        return "it costs something itself"
    if offer.clearance != "private" or offer.keeps_data:
        return (
            "its server may not see private requests, or keeps data: buyers are promised that nobody reads along"
        )
    return ""


@dataclass(frozen=True, slots=True)
class Preview:
    """A listing as it would be signed now, or why there would be none."""

    listing: Listing | None
    why: str = ""


async def preview(visitor: Visitor, settings: SellingSettings, model: str) -> Preview:
    """By the functions that list it: the agent's for what it says, everybody's for what they would take of it."""
    # What sells is imported where somebody lists something: most gateways never do.
    from gateway.selling.own_gateway import Idle as AsAgentHearsIt
    from gateway.selling.sellable_models import SellableModels, listing_name, listing_of
    from market.identity.keys import identity_of, signer_of

    idle = await idle_now(visitor)
    sellable_models = SellableModels(tuple(one for one in settings.models if one.model == model))
    spares = await sellable_models.spare(msgspec.convert(asdict(idle), AsAgentHearsIt))
    if not spares:
        here = next((one for one in await models_here(visitor) if one.name == model), None)
        return Preview(
            None, here.lacks if here and here.lacks else "this gateway has no such model that is free now"
        )
    signer = signer_of(b"\0" * 32)  # Of nobody: it is read here and forgotten.
    listing = listing_of(settings, spares[0], signer.public_key, None, is_ready=True)
    made_ms = time.time_ns() // 10**6
    name = listing_name(spares[0].sellable.sold.market_id)
    saying = Saying(
        "listing", identity_of(signer.public_key), name, made_ms, made_ms, listing, made_ms + _LISTED_MS
    )
    try:
        return Preview(read_listing(sign(saying, signer), allows_loopback=settings.allows_loopback))
    except (ListingInvalid, RecordInvalid) as error:
        return Preview(None, f"nobody would take this listing: {error}")

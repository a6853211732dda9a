"""Aliases of models, and prices of cloud models, that operators set at run time."""

import time
from typing import Annotated

from pydantic import Field

from accounting.money import UsdAmount
from gateway.admin.authority import Authority
from gateway.admin.fields import TEXT, Body
from gateway.billing.model_terms import Alias, ModelTerms, OwnPrice
from gateway.lanes.base import Lanes
from gateway.lanes.cloud.lane import CloudLane
from gateway.lanes.pool.report import is_safe_name
from runtime.errors import RequestInvalid

MODELS_MAX = 50
"""The maximum number of models of one alias."""

Name = Annotated[str, Field(min_length=1, max_length=256, pattern=TEXT)]


class NewAlias(Body):
    """Each backend of the pool, and each other lane, uses the first of `models` that it has."""

    alias: Name
    models: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MODELS_MAX)]


class NewPrice(Body):
    """The price of a cloud model, by the name that callers use; dollars per million tokens, as text."""

    model: Name
    prompt_usd_per_mtok: UsdAmount
    completion_usd_per_mtok: UsdAmount


async def set_alias(authority: Authority, terms: ModelTerms, lanes: Lanes, new: NewAlias) -> Alias:
    """Set an alias for models of any lane, replacing its earlier meaning.

    Raises RequestInvalid, and Conflict if another admin set it at the same time.
    """
    models = tuple(dict.fromkeys(new.models))
    if not is_safe_name(new.alias):
        raise RequestInvalid("alias: must be a name of up to 256 characters, without `..`", param="alias")
    if not all(map(is_safe_name, models)):
        raise RequestInvalid(f"models: must be 1 to {MODELS_MAX} names of models", param="models")
    if new.alias in models:
        raise RequestInvalid("models: an alias cannot route to itself", param="models")
    if unknown := [model for model in models if not _is_model(terms, lanes, model)]:
        text = f"models: model {unknown[0]!r} not found; list models with GET /v1/models"
        raise RequestInvalid(text, param="models")
    alias = Alias(new.alias, models, time.time_ns(), authority.actor.name)
    await terms.set_alias(alias, authority.actor)
    return alias


async def remove_alias(authority: Authority, terms: ModelTerms, alias: str) -> None:
    """Remove an alias; the one of the settings applies again. Raises NotFound."""
    await terms.remove_alias(alias, authority.actor)


async def set_price(authority: Authority, terms: ModelTerms, lanes: Lanes, new: NewPrice) -> OwnPrice:
    """Set a price from the next request on. Raises Conflict, RequestInvalid if no cloud model is so named."""
    cloud = lanes.get("cloud")
    if not isinstance(cloud, CloudLane) or not cloud.has(new.model):
        raise RequestInvalid("model: prices can be set only for models in cloud.models", param="model")
    prices = new.prompt_usd_per_mtok, new.completion_usd_per_mtok
    price = OwnPrice(new.model, *prices, time.time_ns(), authority.actor.name)
    await terms.set_price(price, authority.actor)
    return price


async def remove_price(authority: Authority, terms: ModelTerms, model: str) -> None:
    """Remove a price; the one of the settings, or of the providers' list, applies again. Raises NotFound."""
    await terms.remove_price(model, authority.actor)


def _is_model(terms: ModelTerms, lanes: Lanes, name: str) -> bool:
    """Return whether any lane has a model of this name, ignoring aliases."""
    is_alias = name in terms.aliases()
    offers = (offer for lane in lanes.values() for offer in lane.offers(name))
    return any(not (is_alias and offer.stands_for) for offer in offers)

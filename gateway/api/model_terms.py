"""/admin/aliases and /admin/prices: aliases of models, and prices of providers' models."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from accounting.money import UsdAmount, format_usd
from gateway.admin.fields import Body
from gateway.api.authority import Operator
from gateway.billing.model_terms import Alias, OwnPrice

router = APIRouter()

Name = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00]*$")]
NameAsked = Annotated[str, Query(min_length=1, max_length=256, pattern=r"^[^\x00]*$")]


class NewAlias(Body):
    """Each backend of the pool, and each other lane, uses the first of `models` that it has."""

    alias: Name
    models: Annotated[tuple[Name, ...], Field(min_length=1, max_length=50)]


class NewPrice(Body):
    """The price of a cloud model, by the name that callers use; dollars per million tokens, as text."""

    model: Name
    prompt_usd_per_mtok: UsdAmount
    completion_usd_per_mtok: UsdAmount


@router.get("/aliases")
async def list_aliases(authority: Operator) -> list[dict[str, Any]]:
    """List every alias with its source; an alias that was set at run time overrides the settings."""
    return [_of_alias(each) for each in authority.services.model_terms.every_alias()]


@router.put("/aliases")
async def set_alias(authority: Operator, body: NewAlias) -> dict[str, Any]:
    """Set an alias for models of any lane, in every gateway of the database."""
    terms = authority.services.model_terms
    return _of_alias(await terms.set_alias(body.alias, body.models, authority.actor))


@router.delete("/aliases")
async def remove_alias(authority: Operator, alias: NameAsked) -> dict[str, str]:
    """Remove an alias that was set at run time; an alias of the settings applies again."""
    await authority.services.model_terms.remove_alias(alias, authority.actor)
    return {"removed": alias}


@router.get("/prices")
async def list_own_prices(authority: Operator) -> list[dict[str, Any]]:
    """List prices that were set at run time; `millrace prices list` has all."""
    return [_of_price(each) for each in authority.services.model_terms.now.prices]


@router.put("/prices")
async def set_price(authority: Operator, body: NewPrice) -> dict[str, Any]:
    """Set the price of a cloud model from the next request on, in every gateway of the database."""
    terms = authority.services.model_terms
    prices = body.prompt_usd_per_mtok, body.completion_usd_per_mtok
    return _of_price(await terms.set_price(body.model, *prices, authority.actor))


@router.delete("/prices")
async def remove_price(authority: Operator, model: NameAsked) -> dict[str, str]:
    """Restore the price of the settings, or of the providers' list."""
    await authority.services.model_terms.remove_price(model, authority.actor)
    return {"removed": model}


def _of_alias(alias: Alias) -> dict[str, Any]:
    shown = {"alias": alias.alias, "models": list(alias.models)}
    if alias.since_ns is None:
        return shown | {"origin": "settings"}
    return shown | {"origin": "set", "since_ns": alias.since_ns, "actor": alias.actor}


def _of_price(price: OwnPrice) -> dict[str, Any]:
    return {
        "model": price.model,
        "prompt_usd_per_mtok": format_usd(price.prompt_nano),
        "completion_usd_per_mtok": format_usd(price.completion_nano),
        "since_ns": price.since_ns,
        "actor": price.actor,
    }

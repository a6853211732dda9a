"""/admin/aliases and /admin/prices: aliases of models, and prices of providers' models."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from accounting.money import format_usd
from gateway.admin import model_terms
from gateway.admin.model_terms import Name, NewAlias, NewPrice
from gateway.api.authority import Operator
from gateway.app_state import Lanes, ModelTerms
from gateway.billing.model_terms import Alias, OwnPrice

router = APIRouter()

NameAsked = Annotated[Name, Query()]


@router.get("/aliases")
async def list_aliases(_: Operator, terms: ModelTerms) -> list[dict[str, Any]]:
    """List every alias with its source; an alias that was set at run time overrides the settings."""
    return [_of_alias(each) for each in terms.every_alias()]


@router.put("/aliases")
async def set_alias(authority: Operator, terms: ModelTerms, lanes: Lanes, body: NewAlias) -> dict[str, Any]:
    """Set an alias for models of any lane, in every gateway of the database."""
    return _of_alias(await model_terms.set_alias(authority, terms, lanes, body))


@router.delete("/aliases")
async def remove_alias(authority: Operator, terms: ModelTerms, alias: NameAsked) -> dict[str, str]:
    """Remove an alias that was set at run time; an alias of the settings applies again."""
    await model_terms.remove_alias(authority, terms, alias)
    return {"removed": alias}


@router.get("/prices")
async def list_own_prices(_: Operator, terms: ModelTerms) -> list[dict[str, Any]]:
    """List prices that were set at run time; `millrace prices list` has all."""
    return [_of_price(each) for each in terms.now.prices]


@router.put("/prices")
async def set_price(authority: Operator, terms: ModelTerms, lanes: Lanes, body: NewPrice) -> dict[str, Any]:
    """Set the price of a cloud model from the next request on, in every gateway of the database."""
    return _of_price(await model_terms.set_price(authority, terms, lanes, body))


@router.delete("/prices")
async def remove_price(authority: Operator, terms: ModelTerms, model: NameAsked) -> dict[str, str]:
    """Restore the price of the settings, or of the providers' list."""
    await model_terms.remove_price(authority, terms, model)
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

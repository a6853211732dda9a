"""A model's price and aliases as operators set them, which override the settings."""

from typing import Any

from accounting.money import format_usd
from gateway.console.access import Visitor
from gateway.console.figures.models import ModelRow
from gateway.console.forms import Form


async def terms_of(visitor: Visitor, row: ModelRow) -> dict[str, Any]:
    """Return the values for the forms of a model's page."""
    services = visitor.services
    offer = next((each for each in row.offers if each.lane == "cloud"), None)
    priced = offer.price if offer else None
    names = [
        each for each in services.model_terms.every_alias() if row.name == each.alias or row.name in each.models
    ]
    own = next((each for each in names if each.alias == row.name), None)
    return {
        "has_price": offer is not None,
        "listed": priced.source if priced else "",
        "own_price": next((each for each in services.model_terms.now.prices if each.model == row.name), None),
        "price": Form.showing(
            prompt_usd_per_mtok=format_usd(priced.price.prompt_nano) if priced else "",
            completion_usd_per_mtok=format_usd(priced.price.completion_nano) if priced else "",
        ),
        "names": names,
        "alias": Form.showing(alias=own.alias if own else "", models=", ".join(own.models) if own else row.name),
    }

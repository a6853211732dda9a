"""The wizard's questions, step by step, filled in from the settings file."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from gateway.admin.selling import Connectivity, IdleConditions, ListedModel, SalePrice, tables
from gateway.console.forms import Form

StepName = Literal["what", "when", "price", "way"]

DAYS = (("0", "Mon"), ("1", "Tue"), ("2", "Wed"), ("3", "Thu"), ("4", "Fri"), ("5", "Sat"), ("6", "Sun"))


class Written(BaseModel):
    """The form of the last step; an empty key keeps the one in the file."""

    marketplace_key: Annotated[str, Field(max_length=300, pattern="^[!-~]*$")] = ""


STEPS: Mapping[StepName, type[BaseModel]] = {
    "what": ListedModel,
    "when": IdleConditions,
    "price": SalePrice,
    "way": Connectivity,
}
TITLES: Mapping[str, str] = {
    "what": "Model",
    "when": "Idle conditions",
    "price": "Price",
    "way": "Connectivity",
    "check": "Check and start",
}


def shown(section: Mapping[str, Any], model: str = "") -> dict[StepName, Form[Any]]:
    """Return every step filled in from the file; the price only if the file sells this model already."""
    sold = next((one for one in tables(section, "models") if one.get("model") == model), {})
    hours = tables(section, "hours")
    only = hours[0] if len(hours) == 1 else {}
    return {
        "what": Form.showing(model=model or None, market_id=sold.get("id"), slots_max=sold.get("slots_max")),
        "when": Form.showing(
            minutes=section.get("queue_empty_minutes", 5),
            gpu=section.get("gpu_percent_max", 100),
            on_battery=bool(section.get("on_battery")),
            when="hours" if only else "kept" if hours else "always",
            days=[str(day) for day in days] if isinstance(days := only.get("days"), list) else list(range(7)),
            begins=only.get("begins", "22:00"),
            ends=only.get("ends", "07:00"),
            utc_offset=only.get("utc_offset", "+00:00"),
        ),
        "price": Form.showing(
            prompt=sold.get("prompt_usd_per_mtok"), completion=sold.get("completion_usd_per_mtok")
        ),
        "way": Form.showing(
            tunnel=section.get("tunnel", "quick"),
            public_url=section.get("public_url"),
            token_file=section.get("tunnel_token_file"),
            port=section.get("port", 0),
            marketplace_url=section.get("marketplace_url"),
            country_code=section.get("country_code", "ZZ"),
        ),
    }

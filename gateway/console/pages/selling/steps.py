"""The wizard's questions, step by step, and the settings section built from the answers."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator

from accounting.money import UsdAmount, format_usd
from gateway.console.forms import Form
from market.settings.buyer import checked_base_url
from market.settings.seller import SellingSettings

Tunnel = Literal["quick", "named", "none", "loopback"]
StepName = Literal["what", "when", "price", "way"]

DAYS = (("0", "Mon"), ("1", "Tue"), ("2", "Wed"), ("3", "Thu"), ("4", "Fri"), ("5", "Sat"), ("6", "Sun"))
_TIME = "^([01][0-9]|2[0-3]):[0-5][0-9]$"
_PLAIN = r"^[^\x00-\x1f\x7f]*$"
_FIELDS = {
    "id": "market_id",
    "queue_empty_minutes": "minutes",
    "gpu_percent_max": "gpu",
    "prompt_usd_per_mtok": "prompt",
    "completion_usd_per_mtok": "completion",
    "tunnel_token_file": "token_file",
    "hours": "when",
}
_NAMED = re.compile(r"^(tunnel|port): ")


class What(BaseModel):
    """A model of this gateway, and its name on the market."""

    model: Annotated[str, Field(min_length=1, max_length=200, pattern=_PLAIN)]
    market_id: Annotated[str, Field(max_length=200, pattern=_PLAIN)] = ""
    slots_max: Annotated[int | None, Field(ge=1, le=4096)] = None


class When(BaseModel):
    """Idle conditions. `kept` keeps the hours in the file."""

    minutes: Annotated[int, Field(ge=0, le=1440)]
    gpu: Annotated[int, Field(ge=0, le=100)] = 100
    on_battery: bool = False
    when: Literal["always", "hours", "kept"] = "always"
    days: list[Annotated[int, Field(ge=0, le=6)]] = []
    begins: Annotated[str, Field(pattern=_TIME)] = "22:00"
    ends: Annotated[str, Field(pattern=_TIME)] = "07:00"
    utc_offset: Annotated[str, Field(pattern="^[+-](0[0-9]|1[0-4]):[0-5][0-9]$")] = "+00:00"


class Price(BaseModel):
    """Prices per million tokens, as decimal strings in USD."""

    prompt: UsdAmount
    completion: UsdAmount


class Way(BaseModel):
    """Connectivity, and the marketplace."""

    tunnel: Tunnel = "quick"
    public_url: Annotated[str, Field(max_length=253, pattern=_PLAIN)] = ""
    token_file: Annotated[str, Field(max_length=1000, pattern=_PLAIN)] = ""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    marketplace_url: Annotated[str, AfterValidator(lambda text: checked_base_url(text) if text else text)] = ""
    country_code: Annotated[str, Field(pattern="^[A-Z]{2}$")] = "ZZ"

    @model_validator(mode="after")
    def _has_a_way(self) -> Self:
        if self.tunnel == "none" and not self.marketplace_url:
            raise ValueError("without a tunnel the agent fetches jobs from a marketplace; enter its address")
        return self


class Written(BaseModel):
    """The form of the last step; an empty key keeps the one in the file."""

    marketplace_key: Annotated[str, Field(max_length=300, pattern="^[!-~]*$")] = ""


STEPS: Mapping[StepName, type[BaseModel]] = {"what": What, "when": When, "price": Price, "way": Way}
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


def section_of(
    before: Mapping[str, Any], what: What, when: When, price: Price, way: Way, tokens_per_second: int | None
) -> dict[str, Any]:
    """Return the section with these answers; settings that the wizard does not ask for stay. Pure."""
    section: dict[str, Any] = {name: value for name, value in before.items() if name not in ("models", "hours")}
    section |= {
        "queue_empty_minutes": when.minutes,
        "gpu_percent_max": when.gpu,
        "on_battery": when.on_battery,
        "tunnel": way.tunnel,
        "country_code": way.country_code,
    }
    if way.marketplace_url != str(before.get("marketplace_url", "")).strip().rstrip("/"):
        # The key is a secret between the seller and the old marketplace; do not send it to another one.
        section.pop("marketplace_key", None)
    for name, value in (
        ("public_url", way.public_url),
        ("tunnel_token_file", way.token_file),
        ("port", way.port),
        ("marketplace_url", way.marketplace_url),
    ):
        section.pop(name, None)
        if value:
            section[name] = value
    if hours := _hours(before, when):
        section["hours"] = hours
    section["models"] = _models(before, what, price, tokens_per_second)
    return section


def without_model(before: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Return the section without this model. Pure."""
    left = [one for one in tables(before, "models") if one.get("model") != model]
    section = {name: value for name, value in before.items() if name != "models"}
    return section | ({"models": left} if left else {})


def checked(section: Mapping[str, Any]) -> tuple[SellingSettings | None, dict[str, str]]:
    """Return the section as the agent would read it, or its errors by the wizard's fields."""
    try:
        return SellingSettings.model_validate(dict(section)), {}
    except ValidationError as error:
        found: dict[str, str] = {}
        for problem in error.errors(include_url=False, include_context=False, include_input=False):
            text = problem["msg"].removeprefix("Value error, ")
            names = [str(part) for part in problem["loc"] if isinstance(part, str)]
            name = names[-1] if names else ""
            if not name and (about := _NAMED.match(text)):
                name, text = about[1], text[about.end() :]
            found.setdefault(_FIELDS.get(name, name), f"{text[:1].upper()}{text[1:]}.")
        return None, found


def _hours(before: Mapping[str, Any], when: When) -> list[dict[str, Any]]:
    if when.when == "always":
        return []
    if when.when == "kept":
        return tables(before, "hours")
    days = sorted(set(when.days)) or list(range(7))
    return [{"days": days, "begins": when.begins, "ends": when.ends, "utc_offset": when.utc_offset}]


def _models(
    before: Mapping[str, Any], what: What, price: Price, tokens_per_second: int | None
) -> list[dict[str, Any]]:
    models = tables(before, "models")
    known = next((one for one in models if one.get("model") == what.model), None)
    sold: dict[str, Any] = dict(known or {"model": what.model})
    for name, value in (("id", what.market_id), ("slots_max", what.slots_max)):
        sold.pop(name, None)
        if value:
            sold[name] = value
    sold["prompt_usd_per_mtok"] = format_usd(price.prompt)
    sold["completion_usd_per_mtok"] = format_usd(price.completion)
    if tokens_per_second:
        sold["tokens_per_second"] = tokens_per_second
    return [sold if one is known else one for one in models] if known is not None else [*models, sold]


def tables(section: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """Return a list of tables, ignoring anything else."""
    found = section.get(name)
    return [dict(one) for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []

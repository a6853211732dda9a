"""What the owner of this gateway sells: models, idle hours, prices and connectivity, in `[selling]` of millrace.toml.

The agent is a separate process, which reads the file when it starts.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator

from accounting.money import UsdAmount, format_usd
from gateway.admin.authority import Authority
from gateway.admin.settings_file import SettingsFile
from gateway.settings import FILE_NAME
from market.settings.buyer import checked_base_url
from market.settings.seller import SellingSettings
from runtime.errors import NotFound, RequestInvalid
from runtime.settings import SettingsInvalid

Tunnel = Literal["quick", "named", "none", "loopback"]

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


class ListedModel(BaseModel):
    """A model of this gateway, and its name on the market."""

    model: Annotated[str, Field(min_length=1, max_length=200, pattern=_PLAIN)]
    market_id: Annotated[str, Field(max_length=200, pattern=_PLAIN)] = ""
    slots_max: Annotated[int | None, Field(ge=1, le=4096)] = None


class IdleConditions(BaseModel):
    """Idle conditions. `kept` keeps the hours in the file."""

    minutes: Annotated[int, Field(ge=0, le=1440)]
    gpu: Annotated[int, Field(ge=0, le=100)] = 100
    on_battery: bool = False
    when: Literal["always", "hours", "kept"] = "always"
    days: list[Annotated[int, Field(ge=0, le=6)]] = []
    begins: Annotated[str, Field(pattern=_TIME)] = "22:00"
    ends: Annotated[str, Field(pattern=_TIME)] = "07:00"
    utc_offset: Annotated[str, Field(pattern="^[+-](0[0-9]|1[0-4]):[0-5][0-9]$")] = "+00:00"


class SalePrice(BaseModel):
    """Prices per million tokens, as decimal strings in USD."""

    prompt: UsdAmount
    completion: UsdAmount


class Connectivity(BaseModel):
    """How buyers reach the agent, and the marketplace."""

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


@dataclass(frozen=True, slots=True)
class NewListing:
    """What to sell, when, at which price, and how buyers reach the agent."""

    what: ListedModel
    when: IdleConditions
    price: SalePrice
    way: Connectivity


async def save_listing(
    authority: Authority, file: SettingsFile, model: str, section: Mapping[str, Any], *, before: Mapping[str, Any]
) -> None:
    """Replace the section `before` by one with this model. Raises Conflict if it has changed, SettingsInvalid."""
    await authority.record("selling.list", f"model:{model}", {"model": model})
    await asyncio.to_thread(file.put, section, before=before)


async def remove_listing(authority: Authority, file: SettingsFile, model: str) -> None:
    """Remove a model from the section; a running agent sells it until it is restarted.

    Raises RequestInvalid for an invalid file, NotFound if the file lacks the model, Conflict.
    """
    try:
        section = await asyncio.to_thread(file.section)
        left = without_model(section, model)
        if left == section:
            raise NotFound(f"{model} is not in {FILE_NAME}.")
        await authority.record("selling.unlist", f"model:{model}", {"model": model})
        await asyncio.to_thread(file.put, left, before=section)
    except SettingsInvalid as error:
        raise RequestInvalid(str(error)) from None


def section_of(before: Mapping[str, Any], new: NewListing, tokens_per_second: int | None) -> dict[str, Any]:
    """Return the section with this listing; other settings stay. Pure."""
    when, way = new.when, new.way
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
    section["models"] = with_model(tables(before, "models"), new.what, new.price, tokens_per_second)
    return section


def without_model(before: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Return the section without this model. Pure."""
    left = [one for one in tables(before, "models") if one.get("model") != model]
    section = {name: value for name, value in before.items() if name != "models"}
    return section | ({"models": left} if left else {})


def checked(section: Mapping[str, Any]) -> tuple[SellingSettings | None, dict[str, str]]:
    """Return the section as the agent would read it, or its errors by the fields of a listing."""
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


def _hours(before: Mapping[str, Any], when: IdleConditions) -> list[dict[str, Any]]:
    if when.when == "always":
        return []
    if when.when == "kept":
        return tables(before, "hours")
    days = sorted(set(when.days)) or list(range(7))
    return [{"days": days, "begins": when.begins, "ends": when.ends, "utc_offset": when.utc_offset}]


def with_model(
    models: list[dict[str, Any]], what: ListedModel, price: SalePrice, tokens_per_second: int | None = None
) -> list[dict[str, Any]]:
    """Return the models for sale with this one, which keeps what is not asked. Pure."""
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

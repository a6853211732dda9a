"""Settings that restrict requests, with their current values and their own descriptions. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from accounting.money import format_usd
from gateway.settings import Settings

LEAVING = (
    "policy.lanes",
    "market.buy_for",
    "market.models",
    "market.prompt_usd_per_mtok_max",
    "market.completion_usd_per_mtok_max",
)
SPENDING = ("policy.spend_nano_max", "market.allocation_usd", "market.audit_usd_per_day")
CACHING = (
    "cache.answers",
    "cache.coalesce",
    "cache.lasts_s",
    "cache.entries_max",
    "cache.bytes_max",
    "cache.semantic_model",
    "cache.similarity_min",
)
ROUTING = (
    "routing.target_s",
    "routing.time_nano_per_s",
    "routing.speed_nano_per_s",
    "routing.failure_nano",
    "routing.queue_s",
    "routing.hedging",
    "routing.fallbacks",
)


_FIRST = 2
"""Number always shown from each list; the others are shown only if they were changed."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its dotted name, its description, and its value in words."""

    name: str
    description: str
    value: str
    is_shown: bool


def shown(settings: Settings, names: Iterable[str]) -> list[Setting]:
    """Return these settings with their values. Raises KeyError for an unknown name."""
    return [_setting(settings, name, is_first=place < _FIRST) for place, name in enumerate(names)]


def _setting(settings: Settings, name: str, *, is_first: bool) -> Setting:
    section_name, _, field_name = name.partition(".")
    section: BaseModel = getattr(settings, section_name)
    field: FieldInfo = type(section).model_fields[field_name]
    value = getattr(section, field_name)
    usual = field.get_default(call_default_factory=True, validated_data={})
    return Setting(name, field.description or "", in_words(name, value), is_first or value != usual)


def in_words(name: str, value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and "_nano" in name:
        return f"${format_usd(value)}"
    if "_usd" in name:
        return f"${value}"
    if isinstance(value, dict):
        return "; ".join(f"{key}: {', '.join(map(str, found))}" for key, found in value.items()) or "none"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)

"""Policy in force: lane access, third-party processing, spending limits, and the response cache."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, get_args

from fastapi import APIRouter, Response
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from accounting.money import format_usd
from gateway.app_state import Lanes, Settings
from gateway.console.access import Manager, Visitor
from gateway.console.pages.keys.figures import limit_lines
from gateway.console.pages.keys.key_list import opening_rows
from gateway.console.pages.keys.limits import place_of
from gateway.console.renderer import page
from gateway.settings.base import FOREIGN, LaneName, Privacy

router = APIRouter(prefix="/console/policy")

_LIMITS_SHOWN = 50


@router.get("")
async def show_policy(visitor: Manager, lanes: Lanes, settings: Settings) -> Response:
    values = await asyncio.to_thread(_look, visitor, lanes, settings)
    return page("policy/rules.html", visitor, tab="rules", **values)


def _look(visitor: Visitor, present: Lanes, settings: Settings) -> dict[str, Any]:
    """Read the rules. Settings are shown only to operators; other admins see their keys and limits."""
    keys = opening_rows(visitor)
    lanes = Counter(lane for row in keys for lane in row.lanes)
    privacy = Counter(row.terms.privacy for row in keys)
    scopes = visitor.directory.quotas.scopes(visitor.authority.within(None))
    with visitor.directory.read() as session:
        limits = limit_lines(session, scopes[:_LIMITS_SHOWN])
    return {
        "keys_count": len(keys),
        "lanes": [
            (lane, lane in FOREIGN, lane in present, lane in settings.policy.lanes, lanes[lane])
            for lane in get_args(LaneName)
        ],
        "privacy": [(label, privacy[label]) for label in get_args(Privacy)],
        "with_regions": [row for row in keys if row.terms.regions is not None],
        "with_models": [row for row in keys if row.terms.models is not None],
        "limits": limits,
        "places": {line.quota.scope: place_of(line.quota.scope) for line in limits},
        "names": {f"key:{row.key_id}": f"key {row.name}" for row in keys},
        "limits_left_out": max(0, len(scopes) - _LIMITS_SHOWN),
        "cloud_models": settings.cloud.models if visitor.is_operator else {},
        "sections": _sections(settings) if visitor.is_operator else [],
    }


def _sections(settings: Settings) -> list[tuple[str, str, list[Any]]]:
    return [
        (
            "Third-party processing",
            "Marketplace sellers answer only requests that buy_for names.",
            shown(settings, LEAVING),
        ),
        (
            "Global limits",
            "Apply in addition to limits of keys, users and organizations.",
            shown(settings, SPENDING),
        ),
        (
            "Response cache",
            "Never shared across tenants or privacy labels.",
            shown(settings, CACHING),
        ),
        (
            "Routing weights",
            "By default, your machines are preferred.",
            shown(settings, ROUTING),
        ),
    ]


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

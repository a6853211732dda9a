"""Policy in force: lane access, third-party processing, spending limits, and the response cache."""

import asyncio
from collections import Counter
from typing import Any, get_args

from fastapi import APIRouter, Response

from gateway.console.access import Manager, Visitor
from gateway.console.pages.keys.figures import limit_lines
from gateway.console.pages.keys.key_list import opening_rows
from gateway.console.pages.keys.limits import place_of
from gateway.console.pages.policy.settings_shown import CACHING, LEAVING, ROUTING, SPENDING, shown
from gateway.console.renderer import page
from gateway.settings.base import FOREIGN, LaneName, Privacy

router = APIRouter(prefix="/console/policy")

_LIMITS_SHOWN = 50


@router.get("")
async def show_policy(visitor: Manager) -> Response:
    values = await asyncio.to_thread(_look, visitor)
    return page("policy/rules.html", visitor, tab="rules", **values)


def _look(visitor: Visitor) -> dict[str, Any]:
    """Read the rules. Settings are shown only to operators; other admins see their keys and limits."""
    keys = opening_rows(visitor)
    lanes = Counter(lane for row in keys for lane in row.lanes)
    privacy = Counter(row.terms.privacy for row in keys)
    scopes = visitor.directory.quotas.scopes(visitor.authority.within(None))
    with visitor.directory.read() as session:
        limits = limit_lines(session, scopes[:_LIMITS_SHOWN])
    settings = visitor.services.settings
    return {
        "keys_count": len(keys),
        "lanes": [
            (lane, lane in FOREIGN, lane in visitor.services.lanes, lane in settings.policy.lanes, lanes[lane])
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
        "sections": _sections(visitor),
    }


def _sections(visitor: Visitor) -> list[tuple[str, str, list[Any]]]:
    if not visitor.is_operator:
        return []
    settings = visitor.services.settings
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

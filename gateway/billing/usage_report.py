"""Usage totals for the accounting API and the command line."""

from dataclasses import fields
from typing import Any, TypeAlias

from sqlalchemy.orm import Session

from accounting.metering.usage import UsageGroup, UsageTotal, usage_totals
from accounting.money import format_usd
from gateway.limits.past_use import used_by
from runtime.errors import RequestInvalid

Facts: TypeAlias = dict[str, Any]

GROUPS: dict[str, UsageGroup] = {
    "day": "day",
    "model": "model",
    "lane": "lane",
    "provider": "provider",
    "key": "key_id",
    "user": "user_id",
    "team": "department",
    "outcome": "outcome",
}
DAYS = 30
"""The default period of a report, in days."""
DAY_NS = 86_400 * 10**9
GROUPS_MAX = 1_000


def group_names(by: str) -> list[str]:
    """Return the names in a text such as `day,model`, in order. Raises RequestInvalid."""
    names = list(dict.fromkeys(name.strip() for name in by.split(",")))
    for name in names:
        if name not in GROUPS:
            raise RequestInvalid(f"by: must be comma-separated names of {', '.join(GROUPS)}", param="by")
    return names


def usage_report(
    session: Session,
    names: list[str],
    scope: str | None,
    *,
    since_ns: int,
    until_ns: int,
    offset: int = 0,
    limit: int = GROUPS_MAX,
    with_costs: bool = True,
) -> list[Facts]:
    """Return the usage of a scope's requests by groups. The scope is as in limits; None means all.

    `with_costs` adds their cost to this gateway, which only its admins may see.
    """
    totals = usage_totals(
        session,
        [GROUPS[name] for name in names],
        since_ns=since_ns,
        until_ns=until_ns,
        whose=None if scope is None else used_by(scope),
        offset=offset,
        limit=limit,
    )
    return [_facts(names, total, with_costs=with_costs) for total in totals]


def columns(names: list[str], *, with_costs: bool = True) -> list[str]:
    """Return the names of a report's columns."""
    return [*names, *map(_shown, _figures(with_costs=with_costs))]


def _figures(*, with_costs: bool) -> list[str]:
    left_out = {"group"} if with_costs else {"group", "cost_nano", "own_cost_nano"}
    return [field.name for field in fields(UsageTotal) if field.name not in left_out]


def _facts(names: list[str], total: UsageTotal, *, with_costs: bool) -> Facts:
    """Return money as decimal strings in USD; compute units stay integers."""
    facts: Facts = dict(zip(names, total.group, strict=True))
    for name in _figures(with_costs=with_costs):
        value = getattr(total, name)
        facts[_shown(name)] = format_usd(value) if _is_money(name) else value
    return facts


def _is_money(name: str) -> bool:
    return name.endswith("_nano") and not name.startswith("compute")


def _shown(name: str) -> str:
    return name.removesuffix("_nano") if _is_money(name) else name

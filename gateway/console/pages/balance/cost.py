"""Usage and cost by day, model and key; for the instance also compared with the cloud."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import APIRouter, Response

from accounting.metering.usage import UsageTotal
from gateway.admin.authority import scope_of as part_of
from gateway.admin.usage import usage_of
from gateway.billing.request_filter import RequestFilter
from gateway.console.access import Viewer, Visitor
from gateway.console.figures.cloud_prices import CloudEquals
from gateway.console.figures.month import month
from gateway.console.figures.usage import DAYS, Row, UsageFigures
from gateway.console.pages.balance.daily import Cell, against_cloud, daily
from gateway.console.pages.keys.fields import Plain
from gateway.console.pages.overview.scope import Scope, scope_of
from gateway.console.pages.overview.values import users
from gateway.console.renderer import page
from gateway.identity.key_queries import names_of
from gateway.parameters import sheet

MODELS_SHOWN = 20
KEYS_SHOWN = 20

router = APIRouter(prefix="/cost")

By = Literal["model", "key"]


@dataclass(frozen=True, slots=True)
class KeyUse:
    """Usage of one key in these days; `name` is its display name."""

    key_id: str
    name: str
    requests: int
    tokens: int
    charged_nano: int


@router.get("")
async def show(visitor: Viewer, by: By = "model", whose: Plain = "") -> Response:
    """Show the last thirty days, UTC: all that the visitor may see, or one scope as limits name it."""
    scope = _scope(visitor)
    usage: UsageFigures = visitor.request.app.state.console.usage
    part = await _part(visitor, whose) if whose else scope.name
    rows = await usage.rows(part)
    prices = {}
    if scope.is_instance:
        equals = CloudEquals(visitor.services.lanes, visitor.services.settings.costs.compared_with)
        prices = await asyncio.to_thread(equals.prices, {row.model for row in rows})
    now_ns = time.time_ns()
    spent = month(rows, prices, now_ns, DAYS)
    values: dict[str, Any] = {"spent": spent, "models": spent.by_model[:MODELS_SHOWN], "keys": []}
    if by == "key":
        totals = await usage.key_days(part)
        names = await _names(visitor, {total.group[1] for total in totals})
        values["keys"] = _key_uses(totals, names)[:KEYS_SHOWN]
        cells = [_key_cell(total, names) for total in totals]
    else:
        cells = [_model_cell(row) for row in rows]
    return page(
        "balance/cost.html",
        visitor,
        **values,
        drawn=daily(cells, now_ns, DAYS),
        against=against_cloud(rows, prices, now_ns, DAYS) if scope.is_instance else [],
        users=await users(visitor, scope) if visitor.may_administer else [],
        scope=scope,
        whose=whose,
        by=by,
        days=DAYS,
        tab="cost",
    )


@router.get("/csv")
async def download(visitor: Viewer, by: By = "model", whose: Plain = "") -> Response:
    """Download the same days in the form of the accounting API's usage report. Raises NotFound, RoleForbids."""
    found = await usage_of(visitor.authority, f"day,{by}", whose or _scope(visitor).name or "all")
    return sheet("usage", found.columns, [list(row.values()) for row in found.rows], found.next)


def _scope(visitor: Visitor) -> Scope:
    """Return the visitor's scope. An admin with a key without admin access sees only their own cost."""
    if visitor.is_manager and not visitor.may_administer:
        user_id = visitor.caller.user_id
        return Scope("user", f"user:{user_id}", RequestFilter(user_id=user_id))
    return scope_of(visitor)


async def _part(visitor: Visitor, whose: str) -> str | None:
    return await asyncio.to_thread(part_of, visitor.authority, whose)


async def _names(visitor: Visitor, key_ids: set[str]) -> dict[str, str]:
    return await visitor.services.ledger.look(lambda session: names_of(session, sorted(key_ids)))


def _model_cell(row: Row) -> Cell:
    return Cell(row.day, row.model, _tokens(row.used), row.used.charge_nano)


def _key_cell(total: UsageTotal, names: dict[str, str]) -> Cell:
    day, key_id = total.group
    return Cell(day, _name(key_id, names), _tokens(total), total.charge_nano)


def _key_uses(totals: list[UsageTotal], names: dict[str, str]) -> list[KeyUse]:
    """Return the usage by key, most expensive first."""
    found: dict[str, KeyUse] = {}
    for total in totals:
        key_id = total.group[1]
        before = found.get(key_id, KeyUse(key_id, _name(key_id, names), 0, 0, 0))
        found[key_id] = KeyUse(
            key_id,
            before.name,
            before.requests + total.requests,
            before.tokens + _tokens(total),
            before.charged_nano + total.charge_nano,
        )
    return sorted(found.values(), key=lambda use: (-use.charged_nano, -use.tokens, use.name))


def _name(key_id: str, names: dict[str, str]) -> str:
    """Return the key's name. Sessions of the console have no key."""
    return names.get(key_id, key_id) or "console"


def _tokens(used: UsageTotal) -> int:
    return used.prompt_tokens + used.completion_tokens

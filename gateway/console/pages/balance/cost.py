"""Usage and cost by day, model and key; for the instance also compared with the cloud."""

import asyncio
import time
from typing import Any, Literal

from fastapi import APIRouter, Response

from accounting.metering.usage import UsageTotal
from gateway.admin.authority import scope_of as part_of
from gateway.admin.usage import usage_in
from gateway.app_state import Lanes, Ledger, Settings
from gateway.billing.request_filter import RequestFilter
from gateway.console.access import Viewer, Visitor
from gateway.console.figures.cloud_prices import CloudEquals
from gateway.console.figures.month import Cell, against_cloud, daily, month
from gateway.console.figures.usage import DAYS
from gateway.console.pages.keys.fields import Plain
from gateway.console.pages.overview.values import Scope, Usage, key_name, key_uses, scope_of, users
from gateway.console.renderer import page
from gateway.parameters import sheet

MODELS_SHOWN = 20
KEYS_SHOWN = 20

router = APIRouter(prefix="/cost")

By = Literal["model", "key"]


@router.get("")
async def show(
    visitor: Viewer,
    ledger: Ledger,
    lanes: Lanes,
    settings: Settings,
    usage: Usage,
    by: By = "model",
    whose: Plain = "",
) -> Response:
    """Show the last thirty days, UTC: all that the visitor may see, or one scope as limits name it."""
    scope = _scope(visitor)
    part = await _part(visitor, whose) if whose else scope.name
    rows = await usage.rows(part)
    prices = {}
    if scope.is_instance:
        equals = CloudEquals(lanes, settings.costs.compared_with)
        prices = await asyncio.to_thread(equals.prices, {row.model for row in rows})
    now_ns = time.time_ns()
    spent = month(rows, prices, now_ns, DAYS)
    values: dict[str, Any] = {"spent": spent, "models": spent.by_model[:MODELS_SHOWN], "keys": []}
    if by == "key":
        uses = await key_uses(ledger, usage, part)
        names = {use.key_id: use.name for use in uses}
        values["keys"] = sorted(uses, key=lambda use: (-use.charged_nano, -use.tokens, use.name))[:KEYS_SHOWN]
        totals = await usage.key_days(part)
        cells = [_cell(total.group[0], key_name(total.group[1], names), total) for total in totals]
    else:
        cells = [_cell(row.day, row.model, row.used) for row in rows]
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
async def download(visitor: Viewer, ledger: Ledger, by: By = "model", whose: Plain = "") -> Response:
    """Download the same days in the form of the accounting API's usage report. Raises NotFound, RoleForbids."""
    groups, scope = f"day,{by}", whose or _scope(visitor).name or "all"
    found = await ledger.look(lambda session: usage_in(session, visitor.authority, groups, scope))
    return sheet("usage", found.columns, [list(row.values()) for row in found.rows], found.next)


def _scope(visitor: Visitor) -> Scope:
    """Return the visitor's scope. An admin with a key without admin access sees only their own cost."""
    if visitor.is_manager and not visitor.may_administer:
        user_id = visitor.caller.user_id
        return Scope("user", f"user:{user_id}", RequestFilter(user_id=user_id))
    return scope_of(visitor)


async def _part(visitor: Visitor, whose: str) -> str | None:
    return await asyncio.to_thread(part_of, visitor.authority, whose)


def _cell(day: str, name: str, used: UsageTotal) -> Cell:
    return Cell(day, name, used.prompt_tokens + used.completion_tokens, used.charge_nano)

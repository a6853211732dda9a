"""Selling now: the agent's state and its reason, the listings, the sales; pause and resume."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Response

from gateway.app_state import IdleWatch, OptionalMarketplace, Pauses, PreemptibleJobs, bundle
from gateway.console.access import Operator, Visitor
from gateway.console.forms import pressed
from gateway.console.live import live_parts
from gateway.console.pages.selling.access import (
    PATH,
    Seller,
    Sources,
    command_of,
    price,
    settings_now,
    settings_problem,
)
from gateway.console.pages.selling.accounts import account_now, standing_of
from gateway.console.pages.selling.agent import AgentView, agent_view
from gateway.console.renderer import go, page
from market.settings.seller import SellingSettings
from runtime.data_folder import DataFolder

if TYPE_CHECKING:
    from gateway.console.pages.selling.records import AgentFiles, Listed, Sold

_EVERY_S = 3.0
_STARTED_EVERY_S = 1.0
_SELLER_PARTS = {"selling-trades": "selling/trades.html"}
_PARTS = {f"selling-{part}": f"selling/{part}.html" for part in ("agent", "listings", "sold", "trades")}

_THROUGH_TUNNEL = "Buyers can reach the agent: it reached itself from outside"
_WAYS = {
    "none": "The marketplace lets the agent fetch jobs",
    "loopback": "Only buyers on this machine can reach the agent, for testing",
}

router = APIRouter(prefix=PATH)


@dataclass(frozen=True, slots=True)
class Check:
    """A condition that must hold before the first sale; `helps` is the remedy."""

    what: str
    is_done: bool
    helps: str


@dataclass(frozen=True, slots=True)
class _SellingSources:
    account: Sources
    idle: IdleWatch
    jobs: PreemptibleJobs


AllSources = Annotated[_SellingSources, bundle(_SellingSources)]


@router.get("")
async def show(visitor: Seller, sources: AllSources) -> Response:
    account = await account_now(visitor, sources.account)
    standing, problem = await standing_of(account)
    return page(
        "selling/page.html",
        visitor,
        tab="now",
        account=account,
        standing=standing,
        problem=problem,
        **await _values(visitor, sources),
    )


@router.get("/live")
async def live(visitor: Seller, sources: AllSources) -> Response:
    # Each seller, operators included, has their own allocations.
    key, parts = f"selling:{visitor.caller.user_id}", _PARTS if visitor.is_operator else _SELLER_PARTS
    return await live_parts(visitor, key, _EVERY_S, parts, lambda: _values(visitor, sources))


@router.get("/started")
async def started(visitor: Operator, sources: AllSources) -> Response:
    """Show the wizard's last page: the command that starts the agent, and whether the agent runs."""
    return page("selling/started.html", visitor, tab="list", **await _values(visitor, sources))


@router.get("/started/live")
async def started_live(visitor: Operator, sources: AllSources) -> Response:
    parts = {"selling-checks": "selling/checks.html"}
    return await live_parts(visitor, "selling started", _STARTED_EVERY_S, parts, lambda: _values(visitor, sources))


@router.post("/pause")
async def pause(visitor: Operator, pauses: Pauses) -> Response:
    await pressed(visitor)
    await pauses.pause("selling", visitor.actor)
    return go(visitor, PATH, "Selling is paused until you resume it.")


@router.post("/resume")
async def resume(visitor: Operator, pauses: Pauses) -> Response:
    await pressed(visitor)
    await pauses.resume("selling", visitor.actor)
    return go(visitor, PATH, "Selling is resumed.")


async def _values(visitor: Visitor, sources: AllSources) -> dict[str, Any]:
    """Return the machine's state for operators; for sellers their trade as the marketplace knows it."""
    trades = await _trades(sources.account.marketplace, visitor.caller.user_id)
    values: dict[str, Any] = {"is_operator": visitor.is_operator, "marketplace_trades": trades}
    if not visitor.is_operator:
        return values
    # Market code is imported only when this page is viewed.
    from gateway.console.pages.selling.records import AgentFiles

    data_dir, settings = sources.account.settings.data_dir, await settings_now(sources.account.settings)
    files = AgentFiles(DataFolder(data_dir).market)
    now_ms = time.time_ns() // 10**6
    identity, listings, sold, problem = await asyncio.to_thread(_of_files, data_dir, files, now_ms)
    jobs = sources.jobs
    view = agent_view(
        jobs.agent,
        time.monotonic(),
        len(jobs.stays),
        is_paused=jobs.is_paused,
        idle=await sources.idle.state(),
        settings=settings,
    )
    return values | {
        "price": price,
        "settings_problem": problem,
        "view": view,
        "is_paused": jobs.is_paused,
        "identity": identity,
        "listings": listings,
        "sold": sold,
        "settings": settings,
        "preemptible_jobs": len(jobs.stays),
        "checks": checks(bool(settings.models), view, listings, settings),
        "differs": differs(listings, settings),
        "has_section": bool(settings.models),
        "command": command_of(data_dir),
    }


def _of_files(
    data_dir: Path, files: "AgentFiles", now_ms: int
) -> "tuple[str | None, tuple[Listed, ...], Sold, str]":
    return files.identity(), files.listings(now_ms), files.sold(now_ms), settings_problem(data_dir)


async def _trades(marketplace: OptionalMarketplace, user_id: str) -> list[Any] | None:
    """Return this user's allocations at this marketplace; None if it is not a marketplace."""
    if marketplace is None:
        return None
    from gateway.console.pages.selling.desks import trades

    return await marketplace.ask(lambda: trades(marketplace, user_id, is_open=True))


def checks(
    has_models: bool, view: AgentView, listings: Sequence["Listed"], settings: SellingSettings
) -> list[Check]:
    """Return the conditions for the first sale, in order. Pure."""
    is_there = view.is_there
    is_open = is_there and view.word not in ("tunnel down", "starting", "blocked", "no model")
    is_listed = any(each.is_alive for each in listings) and is_there
    return [
        Check("The settings have a model with a price", has_models, "Complete “List idle capacity”."),
        Check("The agent is running", is_there, "Start it with the command above."),
        Check(
            _WAYS.get(settings.tunnel, _THROUGH_TUNNEL),
            is_open and is_listed,
            view.remedy
            if view.word == "tunnel down"
            else "This takes seconds; a new tunnel takes up to four minutes.",
        ),
        Check(
            "A listing is published; it is renewed every five minutes",
            is_listed,
            f"{view.what} {view.remedy}"
            if is_there
            else "Published once the agent is running and the machine is idle.",
        ),
    ]


def differs(listings: Sequence["Listed"], settings: SellingSettings) -> list[str]:
    """Return models whose listing differs from the settings, because the agent read older ones. Pure."""
    offered = {model.market_id: model for model in settings.models}
    found = []
    for each in listings:
        if not each.is_alive:
            continue
        model, pricing = offered.get(each.listing.id), each.listing.pricing
        prices = (int(pricing.prompt), int(pricing.completion))
        if model is None or (model.prompt_usd_per_mtok, model.completion_usd_per_mtok) != prices:
            found.append(each.listing.id)
    return found

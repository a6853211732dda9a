"""`millrace prices`: current prices, their history, and a check of past charges."""

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli import output
from gateway.cli.command import Group, Report
from gateway.cli.gateway_client import ask, segment
from gateway.settings import Settings

if TYPE_CHECKING:
    from accounting.metering.versions import PriceVersion
    from gateway.admin.authority import Authority

app = Group("Prices and their history.")

_COLUMNS = (
    "lane",
    "model",
    "from",
    "price",
    "source",
    "prompt_usd_per_mtok",
    "cached_usd_per_mtok",
    "completion_usd_per_mtok",
    "reasoning_usd_per_mtok",
    "above_tokens",
    "usd_per_hour",
)
_WRONG = ("request", "charge_usd", "cost_usd", "due_usd")
_NS_PER_S = 10**9


@app.with_authority("list", _COLUMNS)
def list_prices(authority: "Authority") -> Any:
    """List current prices. Example: millrace prices list"""
    from gateway.admin.prices import prices_at

    return _facts(prices_at(authority, time.time_ns()))


@app.with_authority("show", _COLUMNS)
def show(
    authority: "Authority",
    model: Annotated[str, typer.Argument(help="Public model name; * for your machines.")],
    at: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"],
            help="Show the versions at that time (UTC).",
        ),
    ] = None,
) -> Any:
    """Show a model's price history, newest first. Example: millrace prices show fast --at 2026-11-01"""
    from gateway.admin.prices import prices_at, prices_of

    found = prices_at(authority, _ns(at), model) if at else prices_of(authority, model)
    if not found:
        then = f" at {at:%Y-%m-%d %H:%M} UTC" if at else ""
        output.fail(f"no price for {model!r}{then}; `millrace prices list` shows models with prices")
    return _facts(found)


def _show_set(done: dict[str, Any]) -> None:
    prices = done["prompt_usd_per_mtok"], done["completion_usd_per_mtok"]
    output.say(f"{done['model']}: ${prices[0]} per 1M input tokens, ${prices[1]} per 1M output tokens.")


@app.with_settings("set", _show_set)
def set_price(
    settings: Settings,
    model: Annotated[str, typer.Argument(help="Public name of a cloud model.")],
    prompt: Annotated[str, typer.Option(help="USD per million input tokens.")],
    completion: Annotated[str, typer.Option(help="USD per million output tokens.")],
) -> Any:
    """Set a price that applies from the next request on.

    Example: millrace prices set fast --prompt 0.15 --completion 0.60
    """
    body = {"model": model, "prompt_usd_per_mtok": prompt, "completion_usd_per_mtok": completion}
    return ask(settings, "PUT", "/admin/prices", body)


@app.with_settings("unset", "{model} uses the price of the settings or the price list.")
def unset_price(
    settings: Settings, model: Annotated[str, typer.Argument(help="Public name of a cloud model.")]
) -> Any:
    """Use the price of the settings or the price list again. Example: millrace prices unset fast"""
    return ask(settings, "DELETE", f"/admin/prices?model={segment(model)}")


@app.with_authority("check")
def check(
    authority: "Authority",
    since: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d"], help="Only requests since that day (UTC).")
    ] = None,
) -> Report:
    """Recompute every charge from its price and counts. Exits with status 1 if one differs.

    Example: millrace prices check
    """
    from gateway.admin.prices import wrong_charges

    found = wrong_charges(authority, _ns(since) if since else 0)
    rows = [
        (
            each.request_id,
            _usd(each.charge_nano),
            _usd(each.cost_nano),
            "no price" if each.due_nano is None else _usd(each.due_nano),
        )
        for each in found
    ]
    return Report(output.as_dicts(_WRONG, rows), _WRONG, output.FAILED if found else 0)


def _ns(time_utc: datetime) -> int:
    return int(time_utc.replace(tzinfo=UTC).timestamp()) * _NS_PER_S


def _facts(versions: "Iterable[PriceVersion]") -> list[dict[str, object]]:
    return output.as_dicts(_COLUMNS, (row for version in versions for row in _rows(version)))


def _rows(version: "PriceVersion") -> list[tuple[Any, ...]]:
    """Return one row per tier of the price."""
    priced = version.priced
    from_text = datetime.fromtimestamp(version.from_ns // _NS_PER_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    first = (priced.lane, version.name, from_text, priced.id, priced.source)
    if priced.compute_nano is not None:
        return [(*first, "", "", "", "", "", _usd(priced.compute_nano * 3600))]
    tiers = [("", priced.price)]
    if priced.long_context:
        tiers.append((str(priced.long_context.above_tokens), priced.long_context.price))
    return [
        (
            *first,
            _usd(price.prompt_nano),
            _usd(price.cached_nano),
            _usd(price.completion_nano),
            _usd(price.reasoning_nano),
            above,
            "",
        )
        for above, price in tiers
    ]


def _usd(amount_nano: int | None) -> str:
    from accounting.money import format_usd

    return "" if amount_nano is None else format_usd(amount_nano)

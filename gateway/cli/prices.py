"""`millrace prices`: current prices, their history, and a check of past charges."""

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from gateway.cli import output
from gateway.cli.serving import AsJson, DataDir, settings_from

if TYPE_CHECKING:
    from accounting.metering.versions import PriceVersion

app = typer.Typer(help="Prices and their history.", no_args_is_help=True)

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
_NS_PER_S = 10**9


@app.command("list")
def list_prices(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List current prices. Example: millrace prices list"""
    from accounting.metering.versions import versions_now
    from gateway.cli.store import open_store

    with open_store(settings_from(data_dir)) as (read, _), read() as session:
        _table(versions_now(session, time.time_ns()), as_json=as_json)


@app.command("show")
def show(
    model: Annotated[str, typer.Argument(help="Public model name; * for your machines.")],
    at: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"],
            help="Show the versions at that time (UTC).",
        ),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show a model's price history, newest first. Example: millrace prices show fast --at 2026-11-01"""
    from accounting.metering.versions import versions_now, versions_of
    from gateway.cli.store import open_store

    with open_store(settings_from(data_dir)) as (read, _), read() as session:
        if at is None:
            found = versions_of(session, model)
        else:
            at_ns = int(at.replace(tzinfo=UTC).timestamp()) * _NS_PER_S
            found = [version for version in versions_now(session, at_ns) if version.name == model]
    if not found:
        then = f" at {at:%Y-%m-%d %H:%M} UTC" if at else ""
        output.fail(f"no price for {model!r}{then}; `millrace prices list` shows models with prices")
    _table(found, as_json=as_json)


@app.command("set")
def set_price(
    model: Annotated[str, typer.Argument(help="Public name of a cloud model.")],
    prompt: Annotated[str, typer.Option(help="USD per million input tokens.")],
    completion: Annotated[str, typer.Option(help="USD per million output tokens.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Set a price that applies from the next request on.

    Example: millrace prices set fast --prompt 0.15 --completion 0.60
    """
    from gateway.cli.gateway_client import ask

    body = {"model": model, "prompt_usd_per_mtok": prompt, "completion_usd_per_mtok": completion}
    done = ask(settings_from(data_dir), "PUT", "/admin/prices", body)
    prices = done["prompt_usd_per_mtok"], done["completion_usd_per_mtok"]
    text = f"{model}: ${prices[0]} per 1M input tokens, ${prices[1]} per 1M output tokens."
    output.tell(done, text, as_json=as_json)


@app.command("unset")
def unset_price(
    model: Annotated[str, typer.Argument(help="Public name of a cloud model.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Use the price of the settings or the price list again. Example: millrace prices unset fast"""
    from gateway.cli.gateway_client import ask

    done = ask(settings_from(data_dir), "DELETE", f"/admin/prices?model={quote(model, safe='')}")
    output.tell(done, f"{model} uses the price of the settings or the price list.", as_json=as_json)


@app.command("check")
def check(
    since: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d"], help="Only requests since that day (UTC).")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Recompute every charge from its price and counts. Exits with status 1 if one differs.

    Example: millrace prices check
    """
    from accounting.metering.recharge import mischarges
    from accounting.money import format_usd
    from gateway.cli.store import open_store

    since_ns = int(since.replace(tzinfo=UTC).timestamp()) * _NS_PER_S if since else 0
    with open_store(settings_from(data_dir)) as (read, _), read() as session:
        found = mischarges(session, since_ns=since_ns)
    rows = [
        (
            each.request_id,
            format_usd(each.charge_nano),
            format_usd(each.cost_nano),
            "no price" if each.due_nano is None else format_usd(each.due_nano),
        )
        for each in found
    ]
    output.table(("request", "charge_usd", "cost_usd", "due_usd"), rows, as_json=as_json)
    if found:
        raise typer.Exit(output.FAILED)


def _table(versions: "list[PriceVersion]", *, as_json: bool) -> None:
    output.table(_COLUMNS, [row for version in versions for row in _rows(version)], as_json=as_json)


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

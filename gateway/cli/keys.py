"""`millrace key`: create, list and revoke API keys."""

from datetime import UTC, datetime
from typing import Annotated, get_args

import typer

from gateway.cli import output
from gateway.cli.serving import AsJson, DataDir, settings_from
from gateway.settings import LaneName

app = typer.Typer(help="API keys.", no_args_is_help=True)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    lanes: Annotated[
        str | None, typer.Option(help="Lanes it may use, as in cluster,pool,cloud.", show_default="the setting")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a key; it is shown this once. Example: millrace key create editor --lanes cluster,pool"""
    from gateway.cli.store import open_keys

    settings = settings_from(data_dir)
    allowed = _lanes(lanes) if lanes is not None else settings.policy.lanes
    with open_keys(settings) as keys:
        token = keys.create(name, allowed)
    if as_json:
        output.data({"api_key": token, "name": name, "lanes": list(allowed)})
    else:
        output.talk.print("Keep it now, it is not shown again:")
        typer.echo(token)


@app.command("list")
def list_keys(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show keys, never their secret part. Example: millrace key list"""
    from gateway.cli.store import open_keys

    with open_keys(settings_from(data_dir)) as keys:
        rows = [
            (key.key_id, key.prefix, key.name, ",".join(key.lanes), _day(key.created_ns), _day(key.revoked_ns))
            for key in keys.rows()
        ]
    output.table(("id", "prefix", "name", "lanes", "created", "revoked"), rows, as_json=as_json)


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(help="The key's id or prefix, as `millrace key list` shows them.")],
    data_dir: DataDir = None,
) -> None:
    """Revoke a key; running gateways follow within seconds. Example: millrace key revoke mr-Ab3dE6g"""
    from gateway.cli.store import open_keys

    with open_keys(settings_from(data_dir)) as keys:
        revoked = keys.revoke(key)
    if not revoked:
        output.fail(f"no valid key has the id or prefix {key}")
    output.talk.print(f"revoked {revoked} key(s)")


def _lanes(text: str) -> tuple[LaneName, ...]:
    known: tuple[LaneName, ...] = get_args(LaneName)
    chosen = tuple(lane for lane in known if lane in text.split(","))
    unknown = set(text.split(",")) - set(known)
    if unknown or not chosen:
        output.fail(f"--lanes {text}: lanes are {', '.join(known)}", code=2)
    return chosen


def _day(time_ns: int | None) -> str | None:
    return None if time_ns is None else datetime.fromtimestamp(time_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M")

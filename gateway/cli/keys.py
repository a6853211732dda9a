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
    user: Annotated[str, typer.Option(help="Whose credits its cloud requests use.")] = "owner",
    department: Annotated[str, typer.Option(help="Who its compute units are booked to.")] = "home",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a key; it is shown this once. Example: millrace key create editor --lanes cluster,pool"""
    from accounting.chart import department as department_account
    from accounting.chart import terms_of, user_paid
    from gateway.cli.store import open_keys, saying_what_is_wrong

    settings = settings_from(data_dir)
    allowed = _lanes(lanes) if lanes is not None else settings.policy.lanes
    if not name.isprintable():
        output.fail("the name has characters that cannot be shown", output.WRONG_USAGE)
    with saying_what_is_wrong():
        # The books would refuse every request of a key whose accounts cannot be.
        for account in (user_paid(user), department_account(department)):
            terms_of(account)
    with open_keys(settings, make=True) as keys:
        token = keys.create(name, allowed, user_id=user, department=department)
    if as_json:
        made = {"api_key": token, "name": name, "lanes": list(allowed)}
        output.data(made | {"user": user, "department": department})
    else:
        output.say("Keep it now, it is not shown again:")
        typer.echo(token)


@app.command("list")
def list_keys(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show keys, never their secret part. Example: millrace key list"""
    from gateway.cli.store import open_keys

    with open_keys(settings_from(data_dir)) as keys:
        rows = [
            (
                key.key_id,
                key.prefix,
                key.name,
                key.user_id,
                key.department,
                ",".join(key.lanes),
                _day(key.created_ns),
                _day(key.revoked_ns),
            )
            for key in keys.rows()
        ]
    columns = ("id", "prefix", "name", "user", "department", "lanes", "created", "revoked")
    output.table(columns, rows, as_json=as_json)


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
    output.say(f"revoked {revoked} key(s)")


def _lanes(text: str) -> tuple[LaneName, ...]:
    known: tuple[LaneName, ...] = get_args(LaneName)
    chosen = tuple(lane for lane in known if lane in text.split(","))
    unknown = set(text.split(",")) - set(known)
    if unknown or not chosen:
        output.fail(f"--lanes {text}: lanes are {', '.join(known)}", output.WRONG_USAGE)
    return chosen


def _day(time_ns: int | None) -> str | None:
    return None if time_ns is None else datetime.fromtimestamp(time_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M")

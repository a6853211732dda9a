"""`millrace key`: create, list, rotate, limit and revoke API keys."""

import time
from datetime import UTC, datetime
from typing import Annotated, Any, get_args

import typer

from gateway.cli import output
from gateway.cli.completion import Key
from gateway.cli.gateway_client import BORROWED
from gateway.cli.serving import AsJson, DataDir, PageLimit, settings_from
from gateway.pages import PAGE_MAX, Cursor, cut
from gateway.quota import Measure, Span
from gateway.settings import LaneName
from gateway.settings.base import Privacy

app = typer.Typer(help="API keys.", no_args_is_help=True)

KeyName = Annotated[str, Key("Key ID or prefix, as shown by `millrace key list`.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Name of the key.")],
    lanes: Annotated[
        str | None,
        typer.Option(help="Allowed lanes, e.g. cluster,pool,cloud,market.", show_default="the setting"),
    ] = None,
    user: Annotated[str, typer.Option(help="Owner, who is billed for usage.")] = "owner",
    department: Annotated[str, typer.Option(help="Department to which compute units are charged.")] = "home",
    models: Annotated[str | None, typer.Option(help="Allowed models, e.g. a,b; default: all.")] = None,
    regions: Annotated[str | None, typer.Option(help="Allowed regions, e.g. eu,us; default: all.")] = None,
    privacy: Annotated[Privacy, typer.Option(help="Minimum privacy of its requests.")] = "public",
    priority: Annotated[
        int, typer.Option(help="Lower numbers are served first; 0 is interactive.", min=0, max=100)
    ] = 0,
    expires: Annotated[str | None, typer.Option(help="Validity, e.g. 30d or 12h; default: no expiry.")] = None,
    admin: Annotated[bool, typer.Option("--admin", help="Admin access, if the owner is an admin.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Create a key; it is shown only once. Example: millrace key create editor --lanes cluster,pool"""
    from gateway.cli.directory import BY, duration_s, listed, open_directory
    from gateway.identity.key_rows import KeyTerms

    settings = settings_from(data_dir)
    allowed = _lanes(lanes) if lanes is not None else settings.policy.lanes
    if not name.isprintable():
        output.fail("the name contains unprintable characters", output.WRONG_USAGE)
    _refuse_unknown_accounts(user, department)
    expires_ns = time.time_ns() + duration_s(expires, "--expires") * 10**9 if expires else None
    terms = KeyTerms(
        listed(models, "--models"), listed(regions, "--regions"), privacy, priority, expires_ns, admin
    )
    with open_directory(settings, make=True) as directory:
        issued = directory.keys.issue(name, allowed, user_id=user, department=department, terms=terms, by=BY)
    _show_once(issued.token, issued.row.facts(), as_json)


@app.command("list")
def list_keys(
    everything: Annotated[
        bool, typer.Option("--all", help="Include keys that were created for a single command.")
    ] = False,
    limit: PageLimit = PAGE_MAX,
    before: Annotated[
        str | None, typer.Option(help="Start of the next page, as shown by the previous page.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List keys without their secrets, newest first. Example: millrace key list --limit 50"""
    from gateway.cli.directory import open_directory
    from gateway.identity.key_queries import KeyFilter

    filters = KeyFilter(left_out=None if everything or as_json else BORROWED)
    with open_directory(settings_from(data_dir)) as directory:
        cursor = Cursor.parse(before) if before else None
        rows_read = directory.keys.rows(filters=filters, before=cursor, limit=limit + 1)
    shown, last = cut(rows_read, limit)
    output.more_follow(limit, "--before", last and last.cursor)
    found = [row.facts() for row in shown]
    if as_json:
        output.data([_for_scripts(facts) for facts in found])
        return
    columns = ("id", "prefix", "name", "user", "organization", "department", "lanes", "created", "ends", "revoked")
    rows = [
        (
            facts["key_id"],
            facts["prefix"],
            facts["name"],
            facts["user"],
            facts["organization_id"],
            facts["department"],
            ",".join(facts["lanes"]),
            _day(facts["created_ns"]),
            _day(facts["expires_ns"]),
            _day(facts["revoked_ns"]),
        )
        for facts in found
    ]
    output.table(columns, rows, as_json=False)


@app.command()
def revoke(key: KeyName, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Revoke a key; running gateways apply this within seconds. Example: millrace key revoke mr-Ab3dE6g"""
    from gateway.cli.directory import BY, open_directory

    with open_directory(settings_from(data_dir)) as directory:
        revoked = directory.keys.revoke(key, BY)
    if not revoked:
        output.fail(f"no active key with ID or prefix {key}")
    if as_json:
        output.data({"revoked": revoked})
    else:
        output.say(f"revoked {revoked} key(s)")


@app.command()
def rotate(
    key: KeyName,
    grace: Annotated[
        str, typer.Option(help="How long the old secret stays valid, e.g. 1h; 0: not at all.")
    ] = "1h",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Rotate a key's secret; ID and limits stay. Example: millrace key rotate mr-Ab3dE6g --grace 1d"""
    from gateway.cli.directory import BY, duration_s, open_directory

    grace_s = 0 if grace == "0" else duration_s(grace, "--grace")
    with open_directory(settings_from(data_dir), with_secret=True) as directory:
        issued = directory.keys.rotate(key, grace_s, BY)
    _show_once(issued.token, issued.row.facts(), as_json)


@app.command()
def limit(
    target: Annotated[str, typer.Argument(help="Key, user:ID, team:ORG/NAME or organization:ID.")],
    measure: Annotated[
        Measure | None, typer.Argument(help="Metric to limit; without it, limits are shown.")
    ] = None,
    amount: Annotated[str, typer.Argument(help="Number, or USD for spend; `none` removes the limit.")] = "none",
    per: Annotated[Span | None, typer.Option(help="Time span; concurrency has none.")] = None,
    model: Annotated[str | None, typer.Option(help="Only for this model.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Limit a key, user, team or organization. Example: millrace key limit mr-Ab3dE6g requests 60 --per minute"""
    from gateway.cli.directory import BY, open_directory
    from gateway.identity.quotas import facts, parse_quota

    with open_directory(settings_from(data_dir)) as directory:
        scope = target if ":" in target else f"key:{directory.keys.row(target).key_id}"
        if measure is not None:
            quota = parse_quota(scope, measure, "0" if amount == "none" else amount, per, model)
            change = directory.quotas.remove if amount == "none" else directory.quotas.set
            change(quota, BY)
        directory.quotas.organization_of(scope)
        found = [facts(quota) for quota in directory.quotas.of((scope,))]
    columns = ("scope", "measure", "amount", "span", "model")
    output.table(columns, [tuple(row[name] for name in columns) for row in found], as_json=as_json)


def _refuse_unknown_accounts(user: str, department: str) -> None:
    """End the command for invalid accounts: the ledger would reject every request of such a key."""
    from accounting.chart import department as department_account
    from accounting.chart import terms_of, user_paid
    from gateway.cli.store import saying_what_is_wrong

    with saying_what_is_wrong():
        for account in (user_paid(user), department_account(department)):
            terms_of(account)


def _show_once(token: str, facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.data({"api_key": token} | facts)
    else:
        output.say("Copy your key now. You won't see it again.")
        typer.echo(token)


def _for_scripts(facts: dict[str, Any]) -> dict[str, Any]:
    """Add the short names that earlier versions had."""
    return facts | {
        "id": facts["key_id"],
        "lanes": ",".join(facts["lanes"]),
        "created": _day(facts["created_ns"]),
        "revoked": _day(facts["revoked_ns"]),
    }


def _lanes(text: str) -> tuple[LaneName, ...]:
    known: tuple[LaneName, ...] = get_args(LaneName)
    chosen = tuple(lane for lane in known if lane in text.split(","))
    unknown = set(text.split(",")) - set(known)
    if unknown or not chosen:
        output.fail(f"--lanes {text}: lanes are {', '.join(known)}", output.WRONG_USAGE)
    return chosen


def _day(time_ns: int | None) -> str | None:
    return None if time_ns is None else datetime.fromtimestamp(time_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M")

"""`millrace key`: create, list, rotate, limit and revoke API keys."""

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli import output
from gateway.cli.command import Group, PageLimit
from gateway.cli.completion import Key
from gateway.cli.gateway_client import BORROWED
from gateway.pages import PAGE_MAX
from gateway.quota import Measure, Span
from gateway.settings.base import Privacy

if TYPE_CHECKING:
    from gateway.admin.authority import Authority

app = Group("API keys.")

_DURATION = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

KeyName = Annotated[str, Key("Key ID or prefix, as shown by `millrace key list`.")]


def _show_once(facts: dict[str, Any]) -> None:
    output.say("Copy your key now. You won't see it again.")
    typer.echo(facts["api_key"])


@app.with_authority("create", _show_once, make=True)
def create(
    authority: "Authority",
    name: Annotated[str, typer.Argument(help="Name of the key.")],
    lanes: Annotated[
        str | None,
        typer.Option(help="Allowed lanes, e.g. cluster,pool,cloud,market.", show_default="the setting"),
    ] = None,
    user: Annotated[str, typer.Option(help="Owner, who is billed for usage.")] = "owner",
    department: Annotated[
        str | None,
        typer.Option(help="Department to charge compute units to; default: the owner's organization."),
    ] = None,
    models: Annotated[str | None, typer.Option(help="Allowed models, e.g. a,b; default: all.")] = None,
    regions: Annotated[str | None, typer.Option(help="Allowed regions, e.g. eu,us; default: all.")] = None,
    privacy: Annotated[Privacy, typer.Option(help="Minimum privacy of its requests.")] = "public",
    priority: Annotated[
        int, typer.Option(help="Lower numbers are served first; 0 is interactive.", min=0, max=100)
    ] = 0,
    expires: Annotated[str | None, typer.Option(help="Validity, e.g. 30d or 12h; default: no expiry.")] = None,
    admin: Annotated[bool, typer.Option("--admin", help="Admin access, if the owner is an admin.")] = False,
) -> Any:
    """Create a key; it is shown only once. Example: millrace key create editor --lanes cluster,pool"""
    from gateway.admin.keys import NewKey, create_key

    fields = {
        "name": name,
        "user": user,
        "department": department,
        "lanes": _words_of(lanes),
        "models": _words_of(models),
        "regions": _words_of(regions),
        "privacy": privacy,
        "priority": priority,
        "may_administer": admin,
        "expires_in_s": _duration_s(expires, "--expires") if expires else None,
    }
    return create_key(authority, NewKey.model_validate(fields)).facts()


@app.with_authority(
    "list",
    {
        "id": "key_id",
        "prefix": "prefix",
        "name": "name",
        "user": "user",
        "organization": "organization_id",
        "department": "department",
        "lanes": lambda key: ",".join(key["lanes"]),
        "created": lambda key: _day(key["created_ns"]),
        "ends": lambda key: _day(key["expires_ns"]),
        "revoked": lambda key: _day(key["revoked_ns"]),
    },
)
def list_keys(
    authority: "Authority",
    everything: Annotated[
        bool, typer.Option("--all", help="Include keys that were created for a single command.")
    ] = False,
    limit: PageLimit = PAGE_MAX,
    before: Annotated[
        str | None, typer.Option(help="Start of the next page, as shown by the previous page.")
    ] = None,
) -> Any:
    """List keys without their secrets, newest first. Example: millrace key list --limit 50"""
    from gateway.admin import keys
    from gateway.identity.key_queries import KeyFilter

    filters = KeyFilter(left_out=None if everything else BORROWED)
    found, place = keys.list_keys(authority, filters=filters, before=before, limit=limit)
    output.more_follow(limit, "--before", place)
    return [row.facts() for row in found]


@app.with_authority("revoke", "revoked {revoked}")
def revoke(authority: "Authority", key: KeyName) -> Any:
    """Revoke a key; running gateways apply this within seconds. Example: millrace key revoke mr-Ab3dE6g"""
    from gateway.admin.keys import revoke_key

    return {"revoked": revoke_key(authority, key)}


@app.with_authority("rotate", _show_once, with_secret=True)
def rotate(
    authority: "Authority",
    key: KeyName,
    grace: Annotated[
        str, typer.Option(help="How long the old secret stays valid, e.g. 1h; 0: not at all.")
    ] = "1h",
) -> Any:
    """Rotate a key's secret; ID and limits stay. Example: millrace key rotate mr-Ab3dE6g --grace 1d"""
    from gateway.admin.keys import Rotation, rotate_key

    rotation = Rotation(grace_s=0 if grace == "0" else _duration_s(grace, "--grace"))
    return rotate_key(authority, key, rotation).facts()


@app.with_authority("limit", ("scope", "measure", "amount", "span", "model"))
def limit(
    authority: "Authority",
    target: Annotated[str, typer.Argument(help="Key, user:ID, team:ORG/NAME or organization:ID.")],
    measure: Annotated[
        Measure | None, typer.Argument(help="Metric to limit; without it, limits are shown.")
    ] = None,
    amount: Annotated[str, typer.Argument(help="Number, or USD for spend; `none` removes the limit.")] = "none",
    per: Annotated[Span | None, typer.Option(help="Time span; concurrency has none.")] = None,
    model: Annotated[str | None, typer.Option(help="Only for this model.")] = None,
) -> Any:
    """Limit a key, user, team or organization. Example: millrace key limit mr-Ab3dE6g requests 60 --per minute"""
    from gateway.admin.limits import LimitName, NewLimit, limits_of, remove_limit, scope_named, set_limit
    from gateway.identity.quotas import facts

    scope = scope_named(authority, target)
    if measure is not None and amount == "none":
        remove_limit(authority, LimitName(scope=scope, measure=measure, span=per, model=model))
    elif measure is not None:
        set_limit(authority, NewLimit(scope=scope, measure=measure, span=per, model=model, amount=amount))
    return [facts(quota) for quota in limits_of(authority, scope)]


def _day(time_ns: int | None) -> str | None:
    return None if time_ns is None else datetime.fromtimestamp(time_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M")


def _duration_s(text: str, option: str) -> int:
    """Return the seconds of 30d, 12h, 90m or 45s; end the command for anything else."""
    match = _DURATION.fullmatch(text)
    if match is None:
        output.fail(
            f"{option} {text}: must be a number with a unit, e.g. 30d, 12h, 90m or 45s", output.WRONG_USAGE
        )
    return int(match[1]) * _SECONDS[match[2]]


def _words_of(text: str | None) -> tuple[str, ...] | None:
    """Return comma-separated words, None if the option was not given."""
    return None if text is None else tuple(word.strip() for word in text.split(","))

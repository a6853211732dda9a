"""`millrace users`, `org` and `audit`: users, their roles, and the audit log."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

import orjson
import typer

from gateway.cli import output
from gateway.cli.serving import AsJson, DataDir, PageLimit, settings_from
from gateway.pages import PAGE_MAX, Cursor, cut
from gateway.settings import Settings
from gateway.settings.base import Role

app = typer.Typer(help="Users, and their roles.", no_args_is_help=True)
organizations = typer.Typer(help="Organizations: users who share limits.", no_args_is_help=True)

User = Annotated[str, typer.Argument(help="User ID, which is also the ledger account; permanent.")]

_COLUMNS = ("user_id", "organization_id", "role", "name", "email", "removed_ns")


@app.command("list")
def list_users(
    organization: Annotated[str | None, typer.Option(help="Only this organization.")] = None,
    removed: Annotated[bool, typer.Option("--removed", help="Include removed users.")] = False,
    limit: PageLimit = PAGE_MAX,
    after: Annotated[
        str | None, typer.Option(help="Start of the next page, as shown by the previous page.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List users with their roles, oldest first. Example: millrace users list"""
    from gateway.cli.directory import open_directory

    with open_directory(settings_from(data_dir)) as directory:
        within = directory.users.organization(organization).organization_id if organization else None
        cursor = Cursor.parse(after, "after") if after else None
        rows = directory.users.users(within, removed=removed, after=cursor, limit=limit + 1)
    shown, last = cut(rows, limit)
    output.more_follow(limit, "--after", last and last.cursor)
    found = [asdict(user) for user in shown]
    if as_json:
        output.data(found)
    else:
        output.table(_COLUMNS, [tuple(user[name] for name in _COLUMNS) for user in found], as_json=False)


@app.command()
def add(
    user: User,
    organization: Annotated[str, typer.Option(help="Organization ID or name.")] = "home",
    name: Annotated[str | None, typer.Option(help="Display name.")] = None,
    email: Annotated[str | None, typer.Option(help="E-mail address for single sign-on.")] = None,
    role: Annotated[Role, typer.Option(help="Role.")] = "member",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Add a user. Example: millrace users add ann --email ann@example.org --role admin"""
    from gateway.cli.directory import BY, open_directory

    with open_directory(settings_from(data_dir)) as directory:
        made = directory.users.add(user, organization=organization, name=name, email=email, role=role, by=BY)
    _done(asdict(made), f"{made.user_id} is a {made.role} of {made.organization_id}", as_json)


@app.command("role")
def set_role(
    user: User,
    role: Annotated[Role, typer.Argument(help="Role.")],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Change a user's role. Example: millrace users role ann seller"""
    from gateway.cli.directory import BY, open_directory

    with open_directory(settings_from(data_dir)) as directory:
        changed = directory.users.set_role(user, role, BY)
    _done(asdict(changed), f"{user} is a {role} of {changed.organization_id}", as_json)


@app.command()
def remove(user: User, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Remove a user and revoke their keys; usage records stay. Example: millrace users remove ann"""
    from gateway.cli.directory import BY, open_directory

    with open_directory(settings_from(data_dir)) as directory:
        directory.users.remove(user, BY)
    _done({"removed": user}, f"{user} was removed; running gateways apply this within seconds", as_json)


@app.command()
def password(user: User, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Print a single-use link for setting a password. Example: millrace users password ann"""
    from gateway.cli.directory import BY, open_directory
    from gateway.identity.passwords import LINK_LASTS_S, address_of

    settings = settings_from(data_dir)
    root = _console_of(settings)
    with open_directory(settings) as directory:
        address = address_of(directory.passwords.new_link(user, BY), root)
    if as_json:
        output.data({"user": user, "link": address, "lasts_s": LINK_LASTS_S})
        return
    typer.echo(address)
    output.say(f"send it to {user}: it sets a password and expires in one hour; earlier links stop working")


@organizations.command("list")
def list_organizations(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show organizations. Example: millrace org list"""
    from gateway.cli.directory import open_directory

    with open_directory(settings_from(data_dir)) as directory:
        found = [(one.organization_id, one.name) for one in directory.users.organizations()]
    output.table(("organization_id", "name"), found, as_json=as_json)


@organizations.command("add")
def add_organization(
    organization: Annotated[str, typer.Argument(help="Organization ID.")],
    name: Annotated[str | None, typer.Option(help="Display name.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Add an organization. Example: millrace org add lab --name 'Vision lab'"""
    from gateway.cli.directory import BY, open_directory

    with open_directory(settings_from(data_dir)) as directory:
        made = directory.users.add_organization(organization, name, BY)
    _done(asdict(made), f"organization {made.organization_id} created", as_json)


def audit(
    limit: Annotated[int, typer.Option(help="Number of entries, newest first.", min=1, max=500)] = 50,
    action: Annotated[str | None, typer.Option(help="Only this action, e.g. key.create.")] = None,
    actor: Annotated[str | None, typer.Option(help="Only by this actor, e.g. user:ann or machine.")] = None,
    target: Annotated[str | None, typer.Option(help="Only on this target, e.g. key:ID or user:ID.")] = None,
    before: Annotated[int | None, typer.Option(help="Only entries before this number.", min=1)] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show the audit log, newest first. Example: millrace audit --action key.create"""
    from gateway.cli.directory import open_directory
    from gateway.identity.audit import Filter

    filters = Filter(action=action, actor=actor, target=target)
    with open_directory(settings_from(data_dir)) as directory:
        entries = directory.audit.entries(filters, before_seq=before, limit=limit)
    if as_json:
        output.data([asdict(entry) for entry in entries])
        return
    rows = [
        (
            entry.seq,
            datetime.fromtimestamp(entry.at_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S"),
            entry.actor,
            entry.address,
            entry.action,
            entry.target,
            _changes(entry.before, entry.after),
        )
        for entry in entries
    ]
    output.table(("number", "time", "actor", "from", "action", "target", "change"), rows, as_json=False)


def _console_of(settings: Settings) -> str:
    """Return the gateway's address for browsers; end the command if it is unknown."""
    from runtime.data_folder import DataFolder

    running = DataFolder(settings.data_dir).read_running()
    found = settings.identity.public_url or (running and str(running["base_url"]).removesuffix("/v1"))
    if not found:
        output.fail(f"no gateway is running on {settings.data_dir}: start it, or set identity.public_url")
    return found


def _changes(before: dict[str, Any] | None, after: dict[str, Any] | None) -> str:
    """Return the changed fields in one line."""
    if before is None or after is None:
        return ""
    changed = {name: [before.get(name), value] for name, value in after.items() if before.get(name) != value}
    return orjson.dumps(changed).decode()


def _done(facts: dict[str, Any], words: str, as_json: bool) -> None:
    if as_json:
        output.data(facts)
    else:
        output.say(words)

"""`millrace users`, `org` and `audit`: users, their roles, and the audit log."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from gateway.cli import output
from gateway.cli.command import Group, PageLimit, with_authority
from gateway.pages import PAGE_MAX
from gateway.settings import Settings
from gateway.settings.base import Role

if TYPE_CHECKING:
    from gateway.admin.authority import Authority

app = Group("Users, and their roles.")
organizations = Group("Organizations: users who share limits.")

User = Annotated[str, typer.Argument(help="User ID, which is also the ledger account; permanent.")]


@app.with_authority("list", ("user_id", "organization_id", "role", "name", "email", "removed_ns"))
def list_users(
    authority: "Authority",
    organization: Annotated[str | None, typer.Option(help="Only this organization.")] = None,
    removed: Annotated[bool, typer.Option("--removed", help="Include removed users.")] = False,
    limit: PageLimit = PAGE_MAX,
    after: Annotated[
        str | None, typer.Option(help="Start of the next page, as shown by the previous page.")
    ] = None,
) -> Any:
    """List users with their roles, oldest first. Example: millrace users list"""
    from gateway.admin import users

    found, place = users.list_users(authority, organization, removed=removed, after=after, limit=limit)
    output.more_follow(limit, "--after", place)
    return [asdict(user) for user in found]


@app.with_authority("add", "{user_id} is a {role} of {organization_id}")
def add(
    authority: "Authority",
    user: User,
    organization: Annotated[str, typer.Option(help="Organization ID or name.")] = "home",
    name: Annotated[str | None, typer.Option(help="Display name.")] = None,
    email: Annotated[str | None, typer.Option(help="E-mail address for single sign-on.")] = None,
    role: Annotated[Role, typer.Option(help="Role.")] = "member",
) -> Any:
    """Add a user. Example: millrace users add ann --email ann@example.org --role admin"""
    from gateway.admin.users import NewUser, add_user

    new = NewUser(user=user, organization=organization, name=name, email=email, role=role)
    return asdict(add_user(authority, new))


@app.with_authority("role", "{user_id} is a {role} of {organization_id}")
def set_role(authority: "Authority", user: User, role: Annotated[Role, typer.Argument(help="Role.")]) -> Any:
    """Change a user's role. Example: millrace users role ann seller"""
    from gateway.admin import users

    return asdict(users.set_role(authority, user, users.NewRole(role=role)))


@app.with_authority("remove", "{user} was removed; running gateways apply this within seconds")
def remove(authority: "Authority", user: User) -> Any:
    """Remove a user and revoke their keys; usage records stay. Example: millrace users remove ann"""
    from gateway.admin.users import remove_user

    remove_user(authority, user)
    return {"removed": user}


def _show_link(facts: dict[str, Any]) -> None:
    typer.echo(facts["link"])
    output.say(
        f"send it to {facts['user']}: it sets a password and expires in one hour; earlier links stop working"
    )


@app.with_authority("password", _show_link)
def password(authority: "Authority", settings: Settings, user: User) -> Any:
    """Print a single-use link for setting a password. Example: millrace users password ann"""
    from gateway.admin.users import new_password_link
    from gateway.identity.passwords import LINK_LASTS_S, address_of

    link = address_of(new_password_link(authority, user), _console_of(settings))
    return {"user": user, "link": link, "lasts_s": LINK_LASTS_S}


@organizations.with_authority("list", ("organization_id", "name"))
def list_organizations(authority: "Authority") -> Any:
    """Show organizations. Example: millrace org list"""
    from gateway.admin import users

    return [asdict(one) for one in users.list_organizations(authority)]


@organizations.with_authority("add", "organization {organization_id} created")
def add_organization(
    authority: "Authority",
    organization: Annotated[str, typer.Argument(help="Organization ID.")],
    name: Annotated[str | None, typer.Option(help="Display name.")] = None,
) -> Any:
    """Add an organization. Example: millrace org add lab --name 'Vision lab'"""
    from gateway.admin import users

    return asdict(users.add_organization(authority, users.NewOrganization(id=organization, name=name)))


@with_authority(
    {
        "number": "seq",
        "time": lambda entry: datetime.fromtimestamp(entry["at_ns"] / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S"),
        "actor": "actor",
        "from": "address",
        "action": "action",
        "target": "target",
        "change": lambda entry: _changes(entry["before"], entry["after"]),
    }
)
def audit(
    authority: "Authority",
    limit: Annotated[int, typer.Option(help="Number of entries, newest first.", min=1, max=500)] = 50,
    action: Annotated[str | None, typer.Option(help="Only this action, e.g. key.create.")] = None,
    actor: Annotated[str | None, typer.Option(help="Only by this actor, e.g. user:ann or machine.")] = None,
    target: Annotated[str | None, typer.Option(help="Only on this target, e.g. key:ID or user:ID.")] = None,
    before: Annotated[int | None, typer.Option(help="Only entries before this number.", min=1)] = None,
) -> Any:
    """Show the audit log, newest first. Example: millrace audit --action key.create"""
    from gateway.identity.audit import Filter

    filters = Filter(action=action, actor=actor, target=target)
    entries = authority.directory.audit.entries(filters, before_seq=before, limit=limit)
    return [asdict(entry) for entry in entries]


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

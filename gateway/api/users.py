"""/admin/organizations and /admin/users: list, add, change and remove them."""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from gateway.admin.authority import Authority
from gateway.admin.fields import Body, Text, as_cursor
from gateway.admin.parameters import Named, OptionalText, PageCursor, PageLimit
from gateway.api.authority import Manager, Operator
from gateway.errors import RoleForbids
from gateway.identity.users import Organization, User
from gateway.pages import PAGE_MAX, cut
from gateway.settings.base import Role
from runtime.errors import Conflict

router = APIRouter()


class NewOrganization(Body):
    id: Text
    name: Text | None = None


class NewUser(Body):
    """`user` is also the account in the ledger; the organization is the admin's own unless named."""

    user: Text
    organization: Text | None = None
    name: Text | None = None
    email: Text | None = None
    role: Role = "member"


class NewRole(Body):
    role: Role


@router.get("/organizations")
def list_organizations(authority: Manager) -> list[dict[str, Any]]:
    """List organizations that the caller administers."""
    found = authority.directory.users.organizations()
    return [asdict(one) for one in found if authority.organization_id in (None, one.organization_id)]


@router.post("/organizations")
def add_organization(authority: Operator, body: NewOrganization) -> dict[str, Any]:
    """Add an organization."""
    return asdict(authority.directory.users.add_organization(body.id, body.name, authority.actor))


@router.get("/users")
def list_users(
    authority: Manager,
    organization: OptionalText = None,
    removed: bool = False,
    after: PageCursor = None,
    limit: PageLimit = PAGE_MAX,
) -> dict[str, Any]:
    """List users whom the caller administers, oldest first; with `removed` also removed ones.

    `next` is the `after` of the next page, null on the last one.
    """
    within, cursor = authority.within(organization), as_cursor(after, "after")
    found = authority.directory.users.users(within, removed=removed, after=cursor, limit=limit + 1)
    shown, last = cut(found, limit)
    return {"users": [asdict(user) for user in shown], "next": str(last.cursor) if last else None}


@router.post("/users")
def add_user(authority: Manager, body: NewUser) -> dict[str, Any]:
    """Add a user to an organization."""
    users = authority.directory.users
    organization = users.organization(body.organization or authority.organization_id or "home")
    authority.over(organization.organization_id, f"organization {body.organization}")
    _refuse_instance_rights(authority, organization, body)
    made = users.add(
        body.user,
        organization=organization.organization_id,
        name=body.name,
        email=body.email,
        role=body.role,
        by=authority.actor,
    )
    authority.services.keys.catch_up()
    return asdict(made)


@router.patch("/users/{user}")
def set_role(authority: Manager, user: Named, body: NewRole) -> dict[str, Any]:
    """Give a user another role."""
    managed_user(authority, user)
    changed = authority.directory.users.set_role(user, body.role, authority.actor)
    authority.services.keys.catch_up()
    return asdict(changed)


@router.delete("/users/{user}")
def remove_user(authority: Manager, user: Named) -> dict[str, Any]:
    """Remove a user and revoke keys and sessions; account and usage stay."""
    managed_user(authority, user)
    authority.directory.users.remove(user, authority.actor)
    authority.services.keys.catch_up()
    return {"removed": user}


@router.delete("/users/{user}/sessions")
def close_sessions(authority: Manager, user: Named) -> dict[str, Any]:
    """Sign a user out of the console everywhere."""
    managed_user(authority, user)
    return {"closed": authority.directory.sessions.close_all(user, authority.actor)}


def _refuse_instance_rights(authority: Authority, organization: Organization, body: NewUser) -> None:
    """Refuse what only instance admins may do: set a sign-in address, or take over an existing account.

    Raises RoleForbids, Conflict.
    """
    if authority.organization_id is None:
        return
    joined = authority.directory.settings.oidc_organization
    if body.email is not None and joined not in (organization.organization_id, organization.name):
        raise RoleForbids("email: only instance admins set the address by which a user signs in", param="email")
    if authority.directory.users.has_ownerless_account(body.user):
        raise Conflict(f"user: {body.user} has an account in the ledger; ask an instance admin", param="user")


def managed_user(authority: Authority, user: str) -> User:
    """Return a user whom the caller administers. Raises NotFound, also for another organization's user."""
    managed = authority.directory.users.user(user)
    authority.over(managed.organization_id, f"user {user}")
    return managed

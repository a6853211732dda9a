"""Organizations and users: list, add, change and remove them."""

from collections.abc import Sequence

from gateway.admin.authority import Authority, refuse_non_operator, refuse_who_may_not
from gateway.admin.fields import Body, Text, as_cursor
from gateway.errors import RoleForbids
from gateway.identity.users import Organization, User
from gateway.pages import PAGE_MAX, page_of
from gateway.settings.base import Role
from runtime.errors import Conflict


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


def list_organizations(authority: Authority) -> list[Organization]:
    """Return the organizations on which the caller may act: their own, or all for instance admins."""
    found = authority.directory.users.organizations()
    return [one for one in found if authority.organization_id in (None, one.organization_id)]


def add_organization(authority: Authority, new: NewOrganization) -> Organization:
    """Add an organization. Raises RoleForbids, RequestInvalid, and Conflict if the id or the name is taken."""
    refuse_non_operator(authority)
    return authority.directory.users.add_organization(new.id, new.name, authority.actor)


def list_users(
    authority: Authority,
    organization: str | None = None,
    *,
    removed: bool = False,
    after: str | None = None,
    limit: int = PAGE_MAX,
) -> tuple[Sequence[User], str | None]:
    """Return a page of the users whom the caller administers, oldest first, and the `after` of the next page.

    `organization` is an id or a name. With `removed` the page has also removed users. Raises RoleForbids, NotFound,
    and RequestInvalid for `after`.
    """
    refuse_who_may_not(authority.caller)
    if organization is not None:
        organization = authority.directory.users.organization(organization).organization_id
    within, cursor = authority.within(organization), as_cursor(after, "after")
    rows = authority.directory.users.users(within, removed=removed, after=cursor, limit=limit + 1)
    return page_of(rows, limit)


def add_user(authority: Authority, new: NewUser) -> User:
    """Add a user to an organization, given by its id or name.

    Raises:
        RequestInvalid: the id, the name or the address is not valid.
        NotFound: the caller administers no such organization.
        RoleForbids: the caller is no admin, or may not set the address by which the user signs in.
        Conflict: the user exists already, another user has the address, or the ledger has the account.
    """
    refuse_who_may_not(authority.caller)
    directory = authority.directory
    organization = directory.users.organization(new.organization or authority.organization_id or "home")
    authority.over(organization.organization_id, f"organization {new.organization}")
    _refuse_instance_rights(authority, organization, new)
    made = directory.users.add(
        new.user,
        organization=organization.organization_id,
        name=new.name,
        email=new.email,
        role=new.role,
        by=authority.actor,
    )
    directory.keys.catch_up()
    return made


def set_role(authority: Authority, user: str, new: NewRole) -> User:
    """Give a user another role. Raises RoleForbids, NotFound, and Conflict for the last instance admin."""
    refuse_who_may_not(authority.caller)
    managed_user(authority, user)
    changed = authority.directory.users.set_role(user, new.role, authority.actor)
    authority.directory.keys.catch_up()
    return changed


def remove_user(authority: Authority, user: str) -> None:
    """Remove a user and revoke keys and sessions; account and usage stay.

    Raises RoleForbids, NotFound, and Conflict for the last instance admin and the gateway's own accounts.
    """
    refuse_who_may_not(authority.caller)
    managed_user(authority, user)
    authority.directory.users.remove(user, authority.actor)
    authority.directory.keys.catch_up()


def close_sessions(authority: Authority, user: str) -> int:
    """Sign a user out of the console everywhere; returns how many sessions ended. Raises RoleForbids, NotFound."""
    refuse_who_may_not(authority.caller)
    managed_user(authority, user)
    return authority.directory.sessions.close_all(user, authority.actor)


def new_password_link(authority: Authority, user: str) -> str:
    """Return the secret of a link where the user sets a password; earlier links end.

    Anyone with it can sign in as that user, so only instance admins create one. Raises RoleForbids, NotFound.
    """
    refuse_non_operator(authority)
    return authority.directory.passwords.new_link(user, authority.actor)


def managed_user(authority: Authority, user: str) -> User:
    """Return a user of the organizations on which the caller may act. Raises NotFound for any other."""
    managed = authority.directory.users.user(user)
    authority.over(managed.organization_id, f"user {user}")
    return managed


def _refuse_instance_rights(authority: Authority, organization: Organization, new: NewUser) -> None:
    """Refuse what only instance admins may do: set a sign-in address, or take over an existing account.

    Raises RoleForbids, Conflict.
    """
    if authority.organization_id is None:
        return
    joined = authority.directory.settings.oidc_organization
    if new.email is not None and joined not in (organization.organization_id, organization.name):
        raise RoleForbids("email: only instance admins set the address by which a user signs in", param="email")
    if authority.directory.users.has_ownerless_account(new.user):
        raise Conflict(f"user: {new.user} has an account in the ledger; ask an instance admin", param="user")

"""Who acts, and on what: the machine's own token may do everything, a user's role and organization limit the rest."""

import asyncio
from dataclasses import dataclass

from gateway.admin.fields import Facts
from gateway.errors import RoleForbids
from gateway.identity.audit import Actor
from gateway.identity.caller import Caller
from gateway.identity.directory import Directory
from runtime.errors import NotFound, RequestInvalid


@dataclass(frozen=True, slots=True)
class Authority:
    """An admitted caller and the organization they act on: `organization_id` None means all.

    `caller` is None for the machine's own token, and for a command on the data directory.
    """

    directory: Directory
    actor: Actor
    caller: Caller | None = None
    organization_id: str | None = None

    @property
    def is_operator(self) -> bool:
        """Whether this is the machine's own token, or an instance admin whose key has admin access."""
        return self.caller is None or (self.organization_id is None and self.caller.may_administer)

    async def record(self, action: str, target: str, after: Facts | None = None) -> None:
        """Record an action before it is done, because an unrecorded action could not be traced."""
        await asyncio.to_thread(self.directory.audit.add, self.actor, action, target[:200], after)

    def over(self, organization_id: str, what: str) -> None:
        """Raises NotFound for another organization, so that the answer does not reveal what it has."""
        if self.organization_id not in (None, organization_id):
            raise NotFound(f"there is no {what}")

    def within(self, organization_id: str | None) -> str | None:
        """Return the organization to list: the requested one, else `organization_id`. Raises NotFound."""
        if organization_id is not None:
            self.over(organization_id, f"organization {organization_id}")
        return organization_id or self.organization_id


def refuse_who_may_not(caller: Caller | None) -> None:
    """Allow the machine's own token, and admins whose key has admin access. Raises RoleForbids."""
    if caller is None:
        return
    if caller.role != "admin":
        raise RoleForbids(f"Only admins can do this; this key's user is a {caller.role}. See /admin/me.")
    if not caller.may_administer:
        raise RoleForbids(
            "This key has no admin access; `millrace key create NAME --admin` creates one that does."
        )


def refuse_non_operator(authority: Authority) -> None:
    """Allow the machine's own token, and instance admins whose key has admin access. Raises RoleForbids."""
    refuse_who_may_not(authority.caller)
    if authority.organization_id is not None:
        raise RoleForbids("Only instance admins can do this; this key's user is not one.")


def user_of(authority: Authority, user_id: str | None) -> str:
    """Return the user that a request is about: the caller, or for admins any user whom they administer.

    Raises:
        RequestInvalid: the machine's own token must name a user.
        RoleForbids: it is another user, and the caller is no admin.
        NotFound: there is no such user, or only in another organization.
    """
    caller = authority.caller
    if user_id is None:
        if caller is None:
            raise RequestInvalid(
                "user: this credential belongs to no user. Name one, as in ?user=ann", param="user"
            )
        return caller.user_id
    if caller is not None and caller.user_id == user_id:
        return user_id
    refuse_who_may_not(caller)
    user = authority.directory.users.ever(user_id)
    authority.over(user.organization_id, f"user {user_id}")
    return user.user_id


def organization_of(authority: Authority, organization_id: str) -> str:
    """Return the organization with this id: the caller's own, or for instance admins any.

    Raises RoleForbids, NotFound.
    """
    if authority.caller is not None and authority.caller.organization_id == organization_id:
        return organization_id
    return managed(authority, organization_id)


def managed(authority: Authority, organization_id: str) -> str:
    """Return an organization that the caller administers, by its id. Raises RoleForbids, NotFound."""
    refuse_who_may_not(authority.caller)
    authority.over(organization_id, f"organization {organization_id}")
    return authority.directory.users.organization(organization_id).organization_id


def scope_of(authority: Authority, scope: str) -> str | None:
    """Return a limit scope that the caller may see: their own, or for admins any they administer; None for `all`.

    Raises RequestInvalid, NotFound, RoleForbids.
    """
    caller = authority.caller
    if scope == "all":
        refuse_who_may_not(caller)
        if authority.organization_id is not None:
            raise RoleForbids("scope: only instance admins see all users'", param="scope")
        return None
    organization_id = authority.directory.quotas.organization_of(scope)
    if caller is None or not _is_own(authority, caller, scope):
        refuse_who_may_not(caller)
        authority.over(organization_id, scope.replace(":", " ", 1))
    return scope


def _is_own(authority: Authority, caller: Caller, scope: str) -> bool:
    kind, _, name = scope.partition(":")
    if kind == "key":
        return name == caller.key_id or authority.directory.keys.row(name).user_id == caller.user_id
    return scope == f"user:{caller.user_id}"

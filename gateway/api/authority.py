"""Admin access: the machine's own token allows everything, a user's role and organization limit the rest."""

import secrets
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from gateway.errors import RoleForbids
from gateway.identity.audit import Actor
from gateway.identity.caller import HOME, Caller
from gateway.identity.directory import Directory
from gateway.services import Services
from runtime.data_folder import ADMIN_HEADER
from runtime.errors import KeyInvalid, NotFound

HEADER = ADMIN_HEADER


@dataclass(frozen=True, slots=True)
class Authority:
    """An admitted caller and the organization they act on: `organization_id` None means all.

    `caller` is None for the machine's own token.
    """

    services: Services
    actor: Actor
    caller: Caller | None
    organization_id: str | None

    @property
    def directory(self) -> Directory:
        return self.services.directory

    def over(self, organization_id: str, what: str) -> None:
        """Raises NotFound for another organization, so that the answer does not reveal what it has."""
        if self.organization_id not in (None, organization_id):
            raise NotFound(f"there is no {what}")

    def within(self, organization_id: str | None) -> str | None:
        """Return the organization to list: the requested one, else `organization_id`. Raises NotFound."""
        if organization_id is not None:
            self.over(organization_id, f"organization {organization_id}")
        return organization_id or self.organization_id


async def admitted(request: Request) -> Authority:
    """Admit a key, or the machine's token: each start makes a new one, readable only in the data directory.

    Raises KeyInvalid if the token is wrong or no key was sent.
    """
    services: Services = request.app.state.services
    address = request.client.host if request.client else ""
    given = request.headers.get(HEADER)
    if given is not None:
        if not secrets.compare_digest(given.encode(), services.admin_token.encode()):
            raise KeyInvalid(f"This is not the machine's token; {HEADER} carries the one in its data directory.")
        return Authority(services, Actor("machine", address), None, None)
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token.strip():
        raise KeyInvalid(
            f"This is for the machine's own command line, with its token as {HEADER}, "
            "or for an admin: send 'Authorization: Bearer YOUR_KEY'."
        )
    caller = await services.directory.gate.admit(token.strip(), address)
    over = None if caller.role == "admin" and caller.organization_id == HOME else caller.organization_id
    return Authority(services, Actor(f"user:{caller.user_id}", address), caller, over)


async def _operator(authority: Annotated[Authority, Depends(admitted)]) -> Authority:
    refuse_who_may_not(authority.caller)
    if authority.organization_id is not None:
        raise RoleForbids("Only instance admins can do this; this key's user is not one.")
    return authority


async def _manager(authority: Annotated[Authority, Depends(admitted)]) -> Authority:
    refuse_who_may_not(authority.caller)
    return authority


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


Operator = Annotated[Authority, Depends(_operator)]
"""An instance admin, or the machine's own token."""
Manager = Annotated[Authority, Depends(_manager)]
"""An admin of one organization, with access to that one alone; or an operator."""
AnyCaller = Annotated[Authority, Depends(admitted)]
"""Any caller with a valid key, or the machine's own token."""

"""Admin access: the machine's own token allows everything, a user's role and organization limit the rest."""

import secrets
from typing import Annotated

from fastapi import Depends, Request

from gateway.admin.authority import Authority, refuse_non_operator, refuse_who_may_not
from gateway.api.edge import authenticate
from gateway.app_state import Directory
from gateway.identity.audit import Actor
from gateway.identity.caller import HOME, Caller
from runtime.data_folder import ADMIN_HEADER
from runtime.errors import KeyInvalid

HEADER = ADMIN_HEADER


async def admitted(request: Request) -> Authority:
    """Admit a key, or the machine's token: each start makes a new one, readable only in the data directory.

    Raises KeyInvalid if the token is wrong or no key was sent.
    """
    directory: Directory = request.app.state.directory
    machine_token: str = request.app.state.admin_token
    address = request.client.host if request.client else ""
    given = request.headers.get(HEADER)
    if given is not None:
        if not secrets.compare_digest(given.encode(), machine_token.encode()):
            raise KeyInvalid(f"This is not the machine's token; {HEADER} carries the one in its data directory.")
        return Authority(directory, Actor("machine", address))
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token.strip():
        raise KeyInvalid(
            f"This is for the machine's own command line, with its token as {HEADER}, "
            "or for an admin: send 'Authorization: Bearer YOUR_KEY'."
        )
    caller = await directory.gate.admit(token.strip(), address)
    over = None if caller.role == "admin" and caller.organization_id == HOME else caller.organization_id
    return Authority(directory, Actor(f"user:{caller.user_id}", address), caller, over)


async def _operator(authority: Annotated[Authority, Depends(admitted)]) -> Authority:
    refuse_non_operator(authority)
    return authority


async def _manager(authority: Annotated[Authority, Depends(admitted)]) -> Authority:
    refuse_who_may_not(authority.caller)
    return authority


Operator = Annotated[Authority, Depends(_operator)]
"""An instance admin, or the machine's own token."""
Manager = Annotated[Authority, Depends(_manager)]
"""An admin of one organization, with access to that one alone; or an operator."""


async def _key_caller(request: Request, directory: Directory) -> Caller:
    return await authenticate(directory.gate, request.scope)


KeyCaller = Annotated[Caller, Depends(_key_caller)]
"""The caller of a route for apps, which send their key in the header of their API. Raises KeyInvalid."""
AnyCaller = Annotated[Authority, Depends(admitted)]
"""Any caller with a valid key, or the machine's own token."""

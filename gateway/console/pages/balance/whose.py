"""The owner of the money on a page: the visitor, or for admins a user or organization they manage."""

import asyncio
from dataclasses import dataclass
from urllib.parse import urlencode

from gateway.admin.authority import managed, user_of
from gateway.console.access import Visitor

PATH = "/console/balance"


@dataclass(frozen=True, slots=True)
class Whose:
    """A user, or an organization's balance: one of the two ids is empty."""

    user_id: str
    pool_id: str
    name: str
    is_own: bool

    def query(self, **more: object) -> str:
        """Return the query string for addresses."""
        parameters: dict[str, object] = {}
        if not self.is_own:
            parameters = {"organization": self.pool_id} if self.pool_id else {"user": self.user_id}
        parameters |= {name: value for name, value in more.items() if value not in (None, "")}
        return f"?{urlencode(parameters)}" if parameters else ""


async def whose_of(visitor: Visitor, user: str, organization: str) -> Whose:
    """Return the owner. Raises RoleForbids, NotFound."""
    return await asyncio.to_thread(_whose, visitor, user, organization)


def _whose(visitor: Visitor, user: str, organization: str) -> Whose:
    users, authority = visitor.directory.users, visitor.authority
    if organization:
        pool_id = managed(authority, organization)
        return Whose("", pool_id, users.organization(pool_id).name, is_own=False)
    user_id = user_of(authority, user or None)
    return Whose(user_id, "", users.ever(user_id).name, is_own=user_id == visitor.caller.user_id)

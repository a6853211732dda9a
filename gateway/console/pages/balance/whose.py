"""Whose money a page is about: one's own, or for admins a person's or a pool's of theirs."""

import asyncio
from dataclasses import dataclass
from urllib.parse import urlencode

from gateway.api.accounting.asking import managed, user_of
from gateway.console.access import Visitor

PATH = "/console/balance"


@dataclass(frozen=True, slots=True)
class Whose:
    """A person, or the pool of an organization: one of the two is empty."""

    user_id: str
    pool_id: str
    name: str
    is_own: bool

    def query(self, **more: object) -> str:
        """As it stands in an address."""
        said: dict[str, object] = {}
        if not self.is_own:
            said = {"organization": self.pool_id} if self.pool_id else {"user": self.user_id}
        said |= {name: value for name, value in more.items() if value not in (None, "")}
        return f"?{urlencode(said)}" if said else ""


async def whose_of(visitor: Visitor, user: str, organization: str) -> Whose:
    """Raises RoleForbids, NotFound."""
    return await asyncio.to_thread(_whose, visitor, user, organization)


def _whose(visitor: Visitor, user: str, organization: str) -> Whose:
    people, authority = visitor.directory.people, visitor.authority
    if organization:
        pool_id = managed(authority, organization)
        return Whose("", pool_id, people.organization(pool_id).name, is_own=False)
    user_id = user_of(authority, user or None)
    return Whose(user_id, "", people.ever(user_id).name, is_own=user_id == visitor.caller.user_id)

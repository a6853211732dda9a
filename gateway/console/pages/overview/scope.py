"""The scope of a visitor's overview: all requests, their organization's, or their own."""

from dataclasses import dataclass
from typing import Literal

from gateway.billing.request_filter import RequestFilter
from gateway.console.access import Visitor


@dataclass(frozen=True, slots=True)
class Scope:
    """`name` is the scope as limits name it, None for all.

    `has_machines` adds the state and load of the machines, which contain no requests and no money.
    """

    kind: Literal["instance", "organization", "user"]
    name: str | None
    filters: RequestFilter
    has_machines: bool = False

    @property
    def is_instance(self) -> bool:
        return self.kind == "instance"


def scope_of(visitor: Visitor) -> Scope:
    """Return the scope: an operator sees the instance, an admin their organization, other users themselves.

    A session opened with a key sees only that key's requests, unless the key has admin access. An operator's
    session with such a key also sees the machines and their load.
    """
    caller = visitor.caller
    if visitor.is_operator and visitor.may_administer:
        return Scope("instance", None, RequestFilter(), has_machines=True)
    if visitor.may_administer:
        organization_id = caller.organization_id
        filters = RequestFilter(organization_id=organization_id)
        return Scope("organization", f"organization:{organization_id}", filters)
    if caller.key_id:
        own = RequestFilter(key_id=caller.key_id)
        return Scope("user", f"key:{caller.key_id}", own, has_machines=visitor.is_operator)
    return Scope("user", f"user:{caller.user_id}", RequestFilter(user_id=caller.user_id))

"""Whose requests a visitor's overview is about: everybody's, their organization's, or their own."""

from dataclasses import dataclass
from typing import Literal

from gateway.console.access import Visitor
from gateway.records.request_filter import RequestFilter


@dataclass(frozen=True, slots=True)
class Scope:
    """`name` is the scope as limits have it, None for all.

    `has_machines` where the machines' state and load are in it: of nobody's requests, and no money.
    """

    kind: Literal["house", "organization", "person"]
    name: str | None
    wanted: RequestFilter
    has_machines: bool = False

    @property
    def is_house(self) -> bool:
        return self.kind == "house"


def scope_of(visitor: Visitor) -> Scope:
    """An operator sees the house, an admin their organization, everybody else themselves.

    A session that a key has opened sees what that key asked, and no more; an admin's, too, where the key may not
    administer. Such a session of the house's sees the machines and their load besides.
    """
    caller = visitor.caller
    if visitor.is_operator and visitor.may_administer:
        return Scope("house", None, RequestFilter(), has_machines=True)
    if visitor.may_administer:
        organization_id = caller.organization_id
        wanted = RequestFilter(organization_id=organization_id)
        return Scope("organization", f"organization:{organization_id}", wanted)
    if caller.key_id:
        own = RequestFilter(key_id=caller.key_id)
        return Scope("person", f"key:{caller.key_id}", own, has_machines=visitor.is_operator)
    return Scope("person", f"person:{caller.user_id}", RequestFilter(user_id=caller.user_id))

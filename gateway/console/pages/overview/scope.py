"""Whose requests a visitor's overview is about: everybody's, their organization's, or their own."""

from dataclasses import dataclass
from typing import Literal

from gateway.console.access import Visitor
from gateway.records.request_filter import RequestFilter


@dataclass(frozen=True, slots=True)
class Scope:
    """`name` is the scope as limits have it, None for all."""

    kind: Literal["house", "organization", "person"]
    name: str | None
    wanted: RequestFilter

    @property
    def is_house(self) -> bool:
        return self.kind == "house"


def scope_of(visitor: Visitor) -> Scope:
    """An operator sees the house, an admin their organization, everybody else themselves.

    A session that a key has opened sees what that key asked, and no more.
    """
    caller = visitor.caller
    if visitor.is_operator:
        return Scope("house", None, RequestFilter())
    if visitor.is_manager:
        organization_id = caller.organization_id
        wanted = RequestFilter(organization_id=organization_id)
        return Scope("organization", f"organization:{organization_id}", wanted)
    if caller.key_id:
        return Scope("person", f"key:{caller.key_id}", RequestFilter(key_id=caller.key_id))
    return Scope("person", f"person:{caller.user_id}", RequestFilter(user_id=caller.user_id))

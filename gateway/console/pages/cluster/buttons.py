"""Buttons of the cluster's pages: forms without fields of their own."""

from fastapi import Request
from pydantic import BaseModel

from gateway.console.access import Visitor
from gateway.console.figures.machines import MachineRow
from gateway.console.forms import read_form
from gateway.console.pages.cluster.state import cluster_state


class Button(BaseModel):
    """No fields."""


async def pressed(request: Request, visitor: Visitor) -> None:
    """Check a button's form. Raises RoleForbids for another session's form, RequestInvalid for a malformed one."""
    await read_form(request, visitor, Button)


async def machine_of(request: Request, visitor: Visitor, node_id: str) -> MachineRow:
    """Return the machine that a button acts on. Raises NotFound, and as `pressed`."""
    await pressed(request, visitor)
    return cluster_state(visitor.services).row(node_id)

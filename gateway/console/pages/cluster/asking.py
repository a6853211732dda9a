"""Buttons of the cluster's pages: forms that carry nothing but who sends them."""

from fastapi import Request
from pydantic import BaseModel

from gateway.console.access import Visitor
from gateway.console.figures.machines import MachineRow
from gateway.console.forms import read_form
from gateway.console.pages.cluster.state import cluster_state


class Button(BaseModel):
    """No fields."""


async def pressed(request: Request, visitor: Visitor) -> None:
    """Raises RoleForbids for a form that is not of this session, RequestInvalid for what is no form."""
    await read_form(request, visitor, Button)


async def machine_of(request: Request, visitor: Visitor, node_id: str) -> MachineRow:
    """The machine that a button is about. Raises NotFound, and as `pressed`."""
    await pressed(request, visitor)
    return cluster_state(visitor.services).row(node_id)

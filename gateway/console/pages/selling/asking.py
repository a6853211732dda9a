"""Who may see these pages, and a form's way to whoever books it: what stands against it goes beside its field."""

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

from fastapi import Depends
from pydantic import BaseModel

from accounting.errors import LedgerError
from accounting.money import format_usd
from gateway.api.idle import Idle, IdleWatch
from gateway.console.access import Viewer, Visitor
from gateway.console.forms import WHOLE, Form
from gateway.errors import (
    Conflict,
    FeatureUnsupported,
    KeyInvalid,
    NotFound,
    Overloaded,
    RateLimited,
    RequestInvalid,
    RoleForbids,
    to_api_error,
)

PATH = "/console/selling"

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

_SAID = (
    RequestInvalid,
    Conflict,
    NotFound,
    RoleForbids,
    KeyInvalid,
    Overloaded,
    RateLimited,
    FeatureUnsupported,
    LedgerError,
)


async def _seller(visitor: Viewer) -> Visitor:
    if visitor.standings.isdisjoint(("seller", "operator")):
        role = visitor.caller.role
        raise RoleForbids(f"This is for sellers and admins of the house; you are a {role}.")
    return visitor


Seller = Annotated[Visitor, Depends(_seller)]
"""Who sells at this house, or an admin of the house. Raises RoleForbids, too."""


async def idle_now(visitor: Visitor) -> Idle:
    """How idle the gateway is, as the agent is told."""
    watch: IdleWatch = visitor.request.app.state.idle
    return await watch.state()


async def tried(form: Form[M], work: Callable[[M], Awaitable[T]]) -> tuple[T | None, Form[M]]:
    """What `work` makes of a form's value; nothing, and the form with the reason, where it is refused."""
    if form.value is None:
        return None, form
    value = form.value
    try:
        return await work(value), form
    except _SAID as error:
        return None, refused(form, error, frozenset(type(value).model_fields))


def refused(form: Form[M], error: Exception, fields: frozenset[str]) -> Form[M]:
    """The form with what stands against it, beside the field that the error names, where the form has that one."""
    said = to_api_error(error)
    name = said.param if said.param in fields else WHOLE
    return form.refused(sentence(said.message.removeprefix(f"{name}: ") if name else said.message), name or WHOLE)


def price(amount_nano: int) -> str:
    """Dollars to the last digit: what a million tokens cost is no sum that may be rounded."""
    return f"${format_usd(amount_nano)}"


def sentence(text: str) -> str:
    """With a capital letter and an end."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")

"""Access to the selling pages, and helpers that pass forms on and show rejections beside their fields."""

from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

from fastapi import Depends
from pydantic import BaseModel

from accounting.errors import LedgerError
from accounting.money import format_usd
from gateway.api.idle import Idle, IdleWatch
from gateway.console.access import Viewer, Visitor
from gateway.console.forms import WHOLE, Form
from gateway.errors import FeatureUnsupported, RoleForbids, to_api_error
from runtime.errors import Conflict, KeyInvalid, NotFound, Overloaded, RateLimited, RequestInvalid

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
        raise RoleForbids(f"Only sellers and instance admins can do this; your role is {role}.")
    return visitor


Seller = Annotated[Visitor, Depends(_seller)]
"""A seller of this marketplace or an instance admin. Also raises RoleForbids."""


async def idle_now(visitor: Visitor) -> Idle:
    """Return how idle the gateway is, as reported to the agent."""
    watch: IdleWatch = visitor.request.app.state.idle
    return await watch.state()


async def submit(form: Form[M], work: Callable[[M], Awaitable[T]]) -> tuple[T | None, Form[M]]:
    """Return what `work` makes of the form's value, or None and the form with the reason for a rejection."""
    if form.value is None:
        return None, form
    value = form.value
    try:
        return await work(value), form
    except _SAID as error:
        return None, refused(form, error, frozenset(type(value).model_fields))


def refused(form: Form[M], error: Exception, fields: frozenset[str]) -> Form[M]:
    """Return the form with the error beside the field that the error names, if the form has it."""
    api_error = to_api_error(error)
    name = api_error.param if api_error.param in fields else WHOLE
    return form.refused(
        sentence(api_error.message.removeprefix(f"{name}: ") if name else api_error.message), name or WHOLE
    )


def price(amount_nano: int) -> str:
    """Format dollars with all digits: a price per million tokens must not be rounded."""
    return f"${format_usd(amount_nano)}"


def sentence(text: str) -> str:
    """Return the text with a capital letter and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")

"""A form's way through the functions of the accounting API: done once, what they refuse beside its field."""

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field

from accounting.errors import (
    AmountInvalid,
    BooksUnavailable,
    IdempotencyConflict,
    InsufficientCredit,
    LedgerError,
)
from gateway.console.access import Visitor
from gateway.console.forms import WHOLE, Form
from gateway.errors import (
    Conflict,
    FeatureUnsupported,
    GatewayError,
    NotFound,
    Overloaded,
    RequestInvalid,
    RoleForbids,
    to_api_error,
)

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

ONCE = "once"
Once = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
"""A form's own key: sent twice, it is done once."""
_SAID = (RequestInvalid, Conflict, NotFound, RoleForbids, Overloaded, FeatureUnsupported, LedgerError)
_OTHER = "This form was sent before with something else in it. It is a new one now: look at it and send it again."


class Button(BaseModel):
    """A form that is only a button, to be pressed once."""

    once: Once


def fresh(**values: Any) -> Form[Any]:
    """A form to begin with, under a key of its own."""
    return Form.showing(once=uuid.uuid4().hex, **values)


async def answered(form: Form[M], work: Callable[[M], Awaitable[T]]) -> tuple[T | None, Form[M]]:
    """What `work` makes of a form's value; nothing, and the form with the reason, where it is refused."""
    if form.value is None:
        return None, form
    try:
        return await work(form.value), form
    except _SAID as error:
        return None, against(form, error)


def against(form: Form[M], error: GatewayError | LedgerError) -> Form[M]:
    """The form with what stands against it, as a sentence beside the field that the error names.

    It keeps its key only where nobody knows yet what became of it: sent again it is then the same, not more.
    """
    name, text = _said(error)
    refused = form.refused(text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else "."), name)
    if isinstance(error, Overloaded | BooksUnavailable):
        return refused
    return replace(refused, given=refused.given | {ONCE: [uuid.uuid4().hex]})


def _said(error: GatewayError | LedgerError) -> tuple[str, str]:
    if isinstance(error, IdempotencyConflict) or (
        isinstance(error, Conflict) and error.param == "Idempotency-Key"
    ):
        return WHOLE, _OTHER
    if isinstance(error, Overloaded):
        return WHOLE, error.message.replace("with the same Idempotency-Key", "by the same button")
    answer = to_api_error(error)
    if isinstance(error, InsufficientCredit | AmountInvalid):
        return "amount", answer.message
    name = answer.param or WHOLE
    return name, answer.message.removeprefix(f"{name}: ") if name else answer.message


def refuse_weak_key(visitor: Visitor) -> None:
    """Others' money is seen with a key that may administer, or without one. Raises RoleForbids."""
    if visitor.is_manager and not visitor.may_administer:
        raise RoleForbids(
            "You signed in with a key that may not administer, so you see your own money alone. "
            "Sign in with a password, or with a key that `millrace key create NAME --admin` made."
        )

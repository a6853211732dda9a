"""Passes a form to the accounting API's functions: once, with rejections shown beside their fields."""

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field

from accounting.errors import (
    AmountInvalid,
    IdempotencyConflict,
    InsufficientCredit,
    LedgerError,
    LedgerUnavailable,
)
from gateway.console.access import Visitor
from gateway.console.forms import WHOLE, Form
from gateway.errors import FeatureUnsupported, RoleForbids, to_api_error
from runtime.errors import Conflict, NotFound, Overloaded, RequestInvalid, ServiceError

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

ONCE = "once"
Once = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
"""The form's idempotency key: submitting twice has one effect."""
_SAID = (RequestInvalid, Conflict, NotFound, RoleForbids, Overloaded, FeatureUnsupported, LedgerError)
_OTHER = "This form was already submitted with other values. It is a new form now: check it and submit it again."


class Button(BaseModel):
    """A form that is only a button with an idempotency key."""

    once: Once


def fresh(**values: Any) -> Form[Any]:
    """Return an initial form with its own idempotency key."""
    return Form.showing(once=uuid.uuid4().hex, **values)


async def submit(form: Form[M], work: Callable[[M], Awaitable[T]]) -> tuple[T | None, Form[M]]:
    """Return what `work` makes of the form's value, or None and the form with the reason for a rejection."""
    if form.value is None:
        return None, form
    try:
        return await work(form.value), form
    except _SAID as error:
        return None, with_error(form, error)


def with_error(form: Form[M], error: ServiceError | LedgerError) -> Form[M]:
    """Return the form with the error as a sentence beside the field that the error names.

    The form keeps its key only if the outcome is unknown: submitting it again then repeats the same request.
    """
    name, text = _said(error)
    refused = form.refused(text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else "."), name)
    if isinstance(error, Overloaded | LedgerUnavailable):
        return refused
    return replace(refused, given=refused.given | {ONCE: [uuid.uuid4().hex]})


def _said(error: ServiceError | LedgerError) -> tuple[str, str]:
    if isinstance(error, IdempotencyConflict) or (
        isinstance(error, Conflict) and error.param == "Idempotency-Key"
    ):
        return WHOLE, _OTHER
    if isinstance(error, Overloaded):
        return WHOLE, error.message.replace("with the same Idempotency-Key", "with the same button")
    answer = to_api_error(error)
    if isinstance(error, InsufficientCredit | AmountInvalid):
        return "amount", answer.message
    name = answer.param or WHOLE
    return name, answer.message.removeprefix(f"{name}: ") if name else answer.message


def refuse_weak_key(visitor: Visitor) -> None:
    """Raise RoleForbids for an admin's key without admin access, which may not see other users' money."""
    if visitor.is_manager and not visitor.may_administer:
        raise RoleForbids(
            "This key has no admin access, so you see only your own balance. "
            "Sign in with a password, or with a key that `millrace key create NAME --admin` made."
        )

"""Forms: size-limited, checked for their origin, validated by a model; errors appear beside their fields."""

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar, get_origin

from pydantic import BaseModel, ValidationError

from accounting.errors import (
    AmountInvalid,
    IdempotencyConflict,
    InsufficientCredit,
    LedgerError,
    LedgerUnavailable,
)
from gateway.admin.authority import Authority
from gateway.console.access import Visitor
from gateway.console.browser import COOKIE, read_fields
from gateway.errors import FeatureUnsupported, RoleForbids, to_api_error
from runtime.errors import Conflict, KeyInvalid, NotFound, Overloaded, RateLimited, RequestInvalid

FORM_BYTES_MAX = 64 * 1024
"""Size limit of forms of signed-in users."""
CSRF_FIELD = "csrf"
CSRF_HEADER = "x-csrf"
WHOLE = ""
"""The name under which errors of the whole form are stored."""

_URLENCODED = "application/x-www-form-urlencoded"

# Sentences for users by pydantic's kind of error.
_SENTENCES = {
    "missing": "Enter a value.",
    "int_parsing": "Enter a whole number.",
    "int_from_float": "Enter a whole number.",
    "float_parsing": "Enter a number.",
    "decimal_parsing": "Enter a number.",
    "bool_parsing": "Choose yes or no.",
    "date_from_datetime_parsing": "Enter a date as YYYY-MM-DD.",
    "datetime_from_date_parsing": "Enter a date and time.",
    "url_parsing": "Enter a full address, e.g. https://example.org/path.",
    "extra_forbidden": "Unknown field.",
    "too_short": "Enter at least one value.",
    "too_long": "Enter fewer values.",
    "string_pattern_mismatch": "This value has unsupported characters or a wrong format.",
}

_ONCE = "once"
_KEY = re.compile("[0-9a-f]{32}")
_REFUSALS = (
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
_OTHER = "This form was already submitted with other values. It is a new form now: check it and submit it again."

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


class NoFields(BaseModel):
    """A form that is only a button."""


@dataclass(frozen=True, slots=True)
class Form(Generic[M]):
    """A submitted form. `value` is None if `errors` has a message for a field; `given` is the submitted input.

    `is_unsure` means that what was submitted may have been done: the form has kept its idempotency key to repeat it.
    """

    value: M | None = None
    errors: dict[str, str] = field(default_factory=dict)
    given: dict[str, list[str]] = field(default_factory=dict)
    is_unsure: bool = False

    @classmethod
    def showing(cls, **values: Any) -> "Form[M]":
        """Return an initial form filled in with these values."""
        given = {name: _texts(value) for name, value in values.items() if value is not None}
        return cls(given=given)

    def whole(self) -> M:
        """Return the value of a form without user input. Raises RequestInvalid."""
        if self.value is None:
            name, text = next(iter(self.errors.items()))
            raise RequestInvalid(f"{name}: {text}", param=name)
        return self.value

    def refused(self, sentence: str, name: str = WHOLE) -> "Form[M]":
        """Return the same form with an error message of the service."""
        return replace(self, value=None, errors=self.errors | {name: sentence})

    def text(self, name: str, otherwise: object = "") -> str:
        """Return the text to show in a field."""
        values = self.given.get(name)
        return values[0] if values else "" if otherwise is None else str(otherwise)

    def has(self, name: str, value: object) -> bool:
        """Whether a choice is among the submitted ones."""
        return str(value) in self.given.get(name, ())


async def read_form(visitor: Visitor, model: type[M], bytes_max: int = FORM_BYTES_MAX) -> Form[M]:
    """Return the form of the visitor's request, checked by `model`, of at most `bytes_max` bytes.

    Raises RoleForbids for a form of another session, BodyTooLarge, and RequestInvalid for a malformed form.
    """
    request = visitor.request
    kind = request.headers.get("content-type", _URLENCODED).partition(";")[0].strip().lower()
    if kind != _URLENCODED:
        raise RequestInvalid(f"Send the form as {_URLENCODED}.", param="content-type")
    given = await read_fields(request, bytes_max)
    csrf_token = request.headers.get(CSRF_HEADER) or given.pop(CSRF_FIELD, [""])[0]
    given.pop(CSRF_FIELD, None)
    if not visitor.directory.sessions.is_own_form(request.cookies.get(COOKIE, ""), csrf_token):
        raise RoleForbids("This form belongs to another session. Reload the page and try again.", param=CSRF_FIELD)
    return check(model, given)


async def pressed(visitor: Visitor) -> None:
    """Check the form of a button without fields. Raises the errors of `read_form`."""
    await read_form(visitor, NoFields)


def fresh(**values: Any) -> Form[Any]:
    """Return an initial form with its own idempotency key."""
    return Form.showing(once=uuid.uuid4().hex, **values)


async def submit(form: Form[M], work: Callable[[M], Awaitable[T]]) -> tuple[T | None, Form[M]]:
    """Return what `work` makes of the form's value, or None and the form with the reason for a rejection."""
    if form.value is None:
        return None, form
    try:
        return await work(form.value), form
    except _REFUSALS as error:
        return None, refused(form, error)


async def submit_form(
    visitor: Visitor, model: type[M], work: Callable[[M], Awaitable[T]]
) -> tuple[T | None, Form[M]]:
    """Return what `submit` returns for the form of the visitor's request. Raises as `read_form` does."""
    return await submit(await read_form(visitor, model), work)


async def submit_once(
    visitor: Visitor, model: type[M], work: Callable[[M, str], Awaitable[T]]
) -> tuple[T | None, Form[M]]:
    """Return what `submit_form` returns. `work` also gets the form's idempotency key: submitting twice does it once."""
    form = await read_form(visitor, model)
    once = form.text(_ONCE)
    if not _KEY.fullmatch(once):
        form = form.refused("Reload the page.", _ONCE)
    return await submit(form, lambda fields: work(fields, once))


async def submit_to(
    visitor: Visitor, model: type[M], work: Callable[[Authority, M], T]
) -> tuple[T | None, Form[M]]:
    """Return as `submit` does what a blocking function of the service layer makes of the request's form.

    Raises as `read_form` does.
    """
    form, authority = await read_form(visitor, model), visitor.authority
    return await submit(form, lambda fields: asyncio.to_thread(work, authority, fields))


def refused(form: Form[M], error: Exception) -> Form[M]:
    """Return the form with the error as a sentence: beside the field that the error names, if the form has it.

    The form keeps its idempotency key only if the outcome is unknown.
    """
    name, text = _said(error)
    has_field = form.value is not None and name in type(form.value).model_fields
    found = form.refused(sentence(text.removeprefix(f"{name}: ") if name else text), name if has_field else WHOLE)
    if _ONCE not in form.given:
        return found
    if isinstance(error, Overloaded | LedgerUnavailable):
        return replace(found, is_unsure=True)
    return replace(found, given=found.given | {_ONCE: [uuid.uuid4().hex]})


def _said(error: Exception) -> tuple[str, str]:
    """Return the field that an error names, and its text."""
    answer = to_api_error(error)
    name, text = answer.param or WHOLE, answer.message
    if isinstance(error, IdempotencyConflict) or name == "Idempotency-Key":
        return WHOLE, _OTHER if isinstance(error, Conflict | IdempotencyConflict) else text
    if isinstance(error, Overloaded):
        return name, text.replace("with the same Idempotency-Key", "with the same button")
    return "amount" if isinstance(error, InsufficientCredit | AmountInvalid) else name, text


def check(model: type[M], given: dict[str, list[str]]) -> Form[M]:
    """Return the checked fields. Empty fields count as missing."""
    values: dict[str, Any] = {}
    for name, texts in given.items():
        filled = [text.strip() for text in texts if text.strip()]
        if filled and name != _ONCE:
            values[name] = filled if _is_many(model, name) else filled[0]
    try:
        return Form(model.model_validate(values), given=given)
    except ValidationError as error:
        return Form(errors=_sentences(error), given=given)


def _is_many(model: type[BaseModel], name: str) -> bool:
    """Whether a field takes several values; forms use the field's alias."""
    for known, info in model.model_fields.items():
        if name in (known, info.alias):
            kinds = (info.annotation, *getattr(info.annotation, "__args__", ()))
            return any((get_origin(kind) or kind) in (list, tuple, set, frozenset) for kind in kinds)
    return False


def _sentences(error: ValidationError) -> dict[str, str]:
    """Return the first error of each field."""
    found: dict[str, str] = {}
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        name = str(problem["loc"][0]) if problem["loc"] else WHOLE
        found.setdefault(name, _SENTENCES.get(problem["type"]) or sentence(problem["msg"]))
    return found


def sentence(text: str) -> str:
    """Return the text with a capital letter and a full stop."""
    text = text.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


def _texts(value: Any) -> list[str]:
    if isinstance(value, list | tuple | set | frozenset):
        return [str(item) for item in value]
    if isinstance(value, bool):
        return ["true"] if value else []
    return [str(value)]

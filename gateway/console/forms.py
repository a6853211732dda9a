"""Forms: size-limited, checked for their origin, validated by a model; errors appear beside their fields."""

from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar, get_origin

from fastapi import Request
from pydantic import BaseModel, ValidationError

from gateway.console.access import Visitor
from gateway.console.browser import COOKIE, read_fields
from gateway.errors import RoleForbids
from runtime.errors import RequestInvalid

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
    "string_pattern_mismatch": "This value has unsupported characters or a wrong format.",
}

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Form(Generic[M]):
    """A submitted form. `value` is None if `errors` has a message for a field; `given` is the submitted input."""

    value: M | None = None
    errors: dict[str, str] = field(default_factory=dict)
    given: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def showing(cls, **values: Any) -> "Form[M]":
        """Return an initial form filled in with these values."""
        given = {name: _texts(value) for name, value in values.items() if value is not None}
        return cls(given=given)

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


async def read_form(
    request: Request, visitor: Visitor, model: type[M], bytes_max: int = FORM_BYTES_MAX
) -> Form[M]:
    """Return the request's form, checked by `model`, of at most `bytes_max` bytes.

    Raises RoleForbids for a form of another session, BodyTooLarge, and RequestInvalid for a malformed form.
    """
    kind = request.headers.get("content-type", _URLENCODED).partition(";")[0].strip().lower()
    if kind != _URLENCODED:
        raise RequestInvalid(f"Send the form as {_URLENCODED}.", param="content-type")
    given = await read_fields(request, bytes_max)
    csrf_token = request.headers.get(CSRF_HEADER) or given.pop(CSRF_FIELD, [""])[0]
    given.pop(CSRF_FIELD, None)
    if not visitor.directory.sessions.is_own_form(request.cookies.get(COOKIE, ""), csrf_token):
        raise RoleForbids("This form belongs to another session. Reload the page and try again.", param=CSRF_FIELD)
    return check(model, given)


def check(model: type[M], given: dict[str, list[str]]) -> Form[M]:
    """Return the checked fields. Empty fields count as missing."""
    values: dict[str, Any] = {}
    for name, texts in given.items():
        filled = [text.strip() for text in texts if text.strip()]
        if filled:
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
        found.setdefault(name, _SENTENCES.get(problem["type"]) or _as_sentence(problem["msg"]))
    return found


def _as_sentence(message: str) -> str:
    text = message.removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


def _texts(value: Any) -> list[str]:
    if isinstance(value, list | tuple | set | frozenset):
        return [str(item) for item in value]
    if isinstance(value, bool):
        return ["true"] if value else []
    return [str(value)]

"""A form's way through the functions of the admin API: what they say against it goes beside its field."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from pydantic import BaseModel

from gateway.console.forms import WHOLE, Form
from gateway.errors import Conflict, GatewayError, KeyInvalid, NotFound, RequestInvalid, RoleForbids

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


async def asked(form: Form[M], work: Callable[[M], T]) -> tuple[T | None, Form[M]]:
    """What `work` makes of a form's value; nothing, and the form with the reason, where it is refused."""
    if form.value is None:
        return None, form
    value = form.value
    try:
        return await asyncio.to_thread(work, value), form
    except (RequestInvalid, Conflict, NotFound, RoleForbids, KeyInvalid) as error:
        return None, refused(form, error)


def refused(form: Form[M], error: GatewayError) -> Form[M]:
    """The form with what stands against it, as a sentence beside the field that the error names."""
    name = error.param or WHOLE
    text = error.message.removeprefix(f"{name}: ") if name else error.message
    sentence = text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")
    return form.refused(sentence, name)

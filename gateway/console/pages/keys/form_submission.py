"""Passes a form to the admin API's functions; rejections are shown beside their fields."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from pydantic import BaseModel

from gateway.console.forms import WHOLE, Form
from gateway.errors import RoleForbids
from runtime.errors import Conflict, KeyInvalid, NotFound, RequestInvalid, ServiceError

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


async def submit(form: Form[M], work: Callable[[M], T]) -> tuple[T | None, Form[M]]:
    """Return what `work` makes of the form's value, or None and the form with the reason for a rejection."""
    if form.value is None:
        return None, form
    value = form.value
    try:
        return await asyncio.to_thread(work, value), form
    except (RequestInvalid, Conflict, NotFound, RoleForbids, KeyInvalid) as error:
        return None, refused(form, error)


def refused(form: Form[M], error: ServiceError) -> Form[M]:
    """Return the form with the error as a sentence beside the field that the error names."""
    name = error.param or WHOLE
    text = error.message.removeprefix(f"{name}: ") if name else error.message
    sentence = text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")
    return form.refused(sentence, name)

"""Passes a form to the service layer's functions; rejections are shown beside their fields."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel

from gateway.admin.authority import Authority
from gateway.console.access import Visitor
from gateway.console.forms import WHOLE, Form, read_form
from gateway.errors import RoleForbids
from runtime.errors import Conflict, KeyInvalid, NotFound, RequestInvalid, ServiceError

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


async def submit(
    request: Request, visitor: Visitor, model: type[M], work: Callable[[Authority, M], T]
) -> tuple[T | None, Form[M]]:
    """Return what `work` makes of the request's form, and the form; its value is None if it was rejected.

    Raises as `read_form` does.
    """
    form, authority = await read_form(request, visitor, model), visitor.authority
    if form.value is None:
        return None, form
    try:
        return await asyncio.to_thread(work, authority, form.value), form
    except (RequestInvalid, Conflict, NotFound, RoleForbids, KeyInvalid) as error:
        return None, refused(form, error)


def refused(form: Form[M], error: ServiceError) -> Form[M]:
    """Return the form with the error as a sentence beside the field that the error names."""
    name = error.param or WHOLE
    text = error.message.removeprefix(f"{name}: ") if name else error.message
    sentence = text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")
    return form.refused(sentence, name)

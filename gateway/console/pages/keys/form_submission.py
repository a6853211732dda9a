"""Passes a form to a function of the service layer; a rejection is shown beside its field."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel

from gateway.admin.authority import Authority
from gateway.console import forms
from gateway.console.access import Visitor
from gateway.console.forms import Form, read_form

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


async def submit(
    request: Request, visitor: Visitor, model: type[M], work: Callable[[Authority, M], T]
) -> tuple[T | None, Form[M]]:
    """Return what `work` makes of the request's form, and the form; its value is None if it was rejected.

    Raises as `read_form` does.
    """
    form, authority = await read_form(request, visitor, model), visitor.authority
    return await forms.submit(form, lambda fields: asyncio.to_thread(work, authority, fields))

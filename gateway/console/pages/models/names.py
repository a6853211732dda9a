"""A model's aliases and its price at the provider, set on the model's page."""

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, BeforeValidator, Field

from gateway.admin import model_terms
from gateway.admin.model_terms import MODELS_MAX, Name, NewAlias, NewPrice
from gateway.console.access import Operator
from gateway.console.forms import read_form, submit
from gateway.console.pages.models.overview import PATH, model_page
from gateway.console.renderer import go

router = APIRouter(prefix=PATH)


def _names(texts: list[str]) -> list[str]:
    return [name for text in texts for each in text.split(",") if (name := each.strip())]


class Naming(NewAlias):
    """`model` is the model whose page the form was on; `models` is comma-separated."""

    model: Name
    models: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MODELS_MAX), BeforeValidator(_names)]


class Unnaming(BaseModel):
    model: Name
    alias: Name


class Unpricing(BaseModel):
    model: Name


@router.post("/alias")
async def set_alias(request: Request, visitor: Operator) -> Response:
    form = await read_form(request, visitor, Naming)
    done, form = await submit(form, lambda new: model_terms.set_alias(visitor.authority, new))
    if done is None:
        return await model_page(visitor, form.text("model"), 400, alias=form)
    return go(visitor, _place(form.text("model"), "names"), f"Alias {done.alias} set.")


@router.post("/alias/remove")
async def remove_alias(request: Request, visitor: Operator) -> Response:
    """Remove an alias. Raises NotFound, RequestInvalid."""
    gone = (await read_form(request, visitor, Unnaming)).whole()
    await model_terms.remove_alias(visitor.authority, gone.alias)
    place = PATH if gone.model == gone.alias else _place(gone.model, "names")
    return go(visitor, place, f"Alias {gone.alias} removed. The config file may still define it.")


@router.post("/price")
async def set_price(request: Request, visitor: Operator) -> Response:
    form = await read_form(request, visitor, NewPrice)
    done, form = await submit(form, lambda new: model_terms.set_price(visitor.authority, new))
    if done is None:
        return await model_page(visitor, form.text("model"), 400, price=form)
    return go(visitor, _place(done.model, "price"), "Price set. It applies from the next request on.")


@router.post("/price/remove")
async def remove_price(request: Request, visitor: Operator) -> Response:
    """Remove a price that was set. Raises NotFound, RequestInvalid."""
    gone = (await read_form(request, visitor, Unpricing)).whole()
    await model_terms.remove_price(visitor.authority, gone.model)
    return go(visitor, _place(gone.model, "price"), "The list price applies from the next request on.")


def _place(model: str, part: str) -> str:
    return f"{PATH}/of?model={quote(model, safe='')}#{part}"

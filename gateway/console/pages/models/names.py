"""A model's aliases and its price at the provider, set on the model's page."""

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from accounting.money import UsdAmount
from gateway.console.access import Operator
from gateway.console.forms import read_form, submit
from gateway.console.pages.models.overview import PATH, model_page
from gateway.console.renderer import go

router = APIRouter(prefix=PATH)

Name = Annotated[str, Field(max_length=256, pattern=r"^[^\x00]*$")]


class Naming(BaseModel):
    """`model` is the model whose page the form was on; `models` is comma-separated."""

    model: Name
    alias: Name
    models: Annotated[str, Field(max_length=20_000, pattern=r"^[^\x00]*$")]

    @property
    def model_names(self) -> tuple[str, ...]:
        return tuple(name for each in self.models.split(",") if (name := each.strip()))


class Unnaming(BaseModel):
    model: Name
    alias: Name


class Pricing(BaseModel):
    model: Name
    prompt_usd_per_mtok: UsdAmount
    completion_usd_per_mtok: UsdAmount


class Unpricing(BaseModel):
    model: Name


@router.post("/alias")
async def set_alias(request: Request, visitor: Operator) -> Response:
    form = await read_form(request, visitor, Naming)
    terms = visitor.services.model_terms
    done, form = await submit(form, lambda new: terms.set_alias(new.alias, new.model_names, visitor.actor))
    if done is None:
        return await model_page(visitor, form.text("model"), 400, alias=form)
    return go(visitor, _place(form.text("model"), "names"), f"Alias {done.alias} set.")


@router.post("/alias/remove")
async def remove_alias(request: Request, visitor: Operator) -> Response:
    """Remove an alias. Raises NotFound, RequestInvalid."""
    gone = (await read_form(request, visitor, Unnaming)).whole()
    await visitor.services.model_terms.remove_alias(gone.alias, visitor.actor)
    place = PATH if gone.model == gone.alias else _place(gone.model, "names")
    return go(visitor, place, f"Alias {gone.alias} removed. The config file may still define it.")


@router.post("/price")
async def set_price(request: Request, visitor: Operator) -> Response:
    form = await read_form(request, visitor, Pricing)
    terms = visitor.services.model_terms
    done, form = await submit(
        form,
        lambda new: terms.set_price(
            new.model, new.prompt_usd_per_mtok, new.completion_usd_per_mtok, visitor.actor
        ),
    )
    if done is None:
        return await model_page(visitor, form.text("model"), 400, price=form)
    return go(visitor, _place(done.model, "price"), "Price set. It applies from the next request on.")


@router.post("/price/remove")
async def remove_price(request: Request, visitor: Operator) -> Response:
    """Remove a price that was set. Raises NotFound, RequestInvalid."""
    gone = (await read_form(request, visitor, Unpricing)).whole()
    await visitor.services.model_terms.remove_price(gone.model, visitor.actor)
    return go(visitor, _place(gone.model, "price"), "The list price applies from the next request on.")


def _place(model: str, part: str) -> str:
    return f"{PATH}/of?model={quote(model, safe='')}#{part}"

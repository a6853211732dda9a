"""A model's aliases and its price at the provider, set on the model's page."""

from typing import Annotated, TypeVar
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from gateway.api.model_terms import NewPrice, set_price_of
from gateway.console.access import Operator
from gateway.console.forms import Form, read_form
from gateway.console.pages.keys.form_submission import refused
from gateway.console.pages.models.overview import PATH, model_page
from gateway.console.renderer import go
from runtime.errors import Conflict, RequestInvalid

router = APIRouter(prefix=PATH)

Name = Annotated[str, Field(max_length=256, pattern=r"^[^\x00]*$")]
Usd = Annotated[str, Field(max_length=40)]
M = TypeVar("M", bound=BaseModel)


class Naming(BaseModel):
    """`model` is the model whose page the form was on; `models` is comma-separated."""

    model: Name
    alias: Name
    models: Annotated[str, Field(max_length=20_000, pattern=r"^[^\x00]*$")]

    @property
    def model_names(self) -> tuple[str, ...]:
        """The model names without duplicates, in order."""
        return tuple(dict.fromkeys(name for each in self.models.split(",") if (name := each.strip())))


class Unnaming(BaseModel):
    model: Name
    alias: Name


class Pricing(BaseModel):
    model: Name
    prompt_usd_per_mtok: Usd
    completion_usd_per_mtok: Usd


class Unpricing(BaseModel):
    model: Name


@router.post("/alias")
async def set_alias(request: Request, visitor: Operator) -> Response:
    form = await read_form(request, visitor, Naming)
    terms = visitor.services.model_terms
    if form.value is not None:
        try:
            await terms.set_alias(form.value.alias, form.value.model_names, visitor.actor)
        except (RequestInvalid, Conflict) as error:
            form = refused(form, error)
    if form.value is None:
        return await model_page(visitor, form.text("model"), 400, alias=form)
    return go(visitor, _place(form.value.model, "names"), f"Alias {form.value.alias} set.")


@router.post("/alias/remove")
async def remove_alias(request: Request, visitor: Operator) -> Response:
    """Remove an alias. Raises NotFound, RequestInvalid."""
    gone = _whole(await read_form(request, visitor, Unnaming))
    await visitor.services.model_terms.remove_alias(gone.alias, visitor.actor)
    place = PATH if gone.model == gone.alias else _place(gone.model, "names")
    return go(visitor, place, f"Alias {gone.alias} removed. The config file may still define it.")


@router.post("/price")
async def set_price(request: Request, visitor: Operator) -> Response:
    form = await read_form(request, visitor, Pricing)
    if form.value is not None:
        try:
            await set_price_of(visitor.authority, NewPrice(**form.value.model_dump()))
        except (RequestInvalid, Conflict) as error:
            form = refused(form, error)
    if form.value is None:
        return await model_page(visitor, form.text("model"), 400, price=form)
    return go(visitor, _place(form.value.model, "price"), "Price set. It applies from the next request on.")


@router.post("/price/remove")
async def remove_price(request: Request, visitor: Operator) -> Response:
    """Remove a price that was set. Raises NotFound, RequestInvalid."""
    gone = _whole(await read_form(request, visitor, Unpricing))
    await visitor.services.model_terms.remove_price(gone.model, visitor.actor)
    return go(visitor, _place(gone.model, "price"), "The list price applies from the next request on.")


def _whole(form: Form[M]) -> M:
    """Return the value of a button's form, which has no user input. Raises RequestInvalid."""
    if form.value is None:
        name, sentence = next(iter(form.errors.items()))
        raise RequestInvalid(f"{name}: {sentence}", param=name)
    return form.value


def _place(model: str, part: str) -> str:
    return f"{PATH}/of?model={quote(model, safe='')}#{part}"

"""A model's further names and its price at the provider, set where the model is shown."""

from typing import Annotated, TypeVar
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from gateway.api.model_terms import NewPrice, set_price_of
from gateway.console.access import Operator
from gateway.console.forms import Form, read_form
from gateway.console.pages.keys.asking import refused
from gateway.console.pages.models.overview import PATH, model_page
from gateway.console.rendering import go
from gateway.errors import Conflict, RequestInvalid

router = APIRouter(prefix=PATH)

Name = Annotated[str, Field(max_length=256, pattern=r"^[^\x00]*$")]
Usd = Annotated[str, Field(max_length=40)]
M = TypeVar("M", bound=BaseModel)


class Naming(BaseModel):
    """`model` is the one whose page it was filled in on; `models` are apart by commas."""

    model: Name
    alias: Name
    models: Annotated[str, Field(max_length=20_000, pattern=r"^[^\x00]*$")]

    @property
    def wanted(self) -> tuple[str, ...]:
        """Each once, in their order."""
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
            await terms.set_alias(form.value.alias, form.value.wanted, visitor.actor)
        except (RequestInvalid, Conflict) as error:
            form = refused(form, error)
    if form.value is None:
        return await model_page(visitor, form.text("model"), 400, alias=form)
    return go(visitor, _place(form.value.model, "names"), f"Callers may say {form.value.alias}.")


@router.post("/alias/remove")
async def remove_alias(request: Request, visitor: Operator) -> Response:
    """Raises NotFound, RequestInvalid."""
    gone = _whole(await read_form(request, visitor, Unnaming))
    await visitor.services.model_terms.remove_alias(gone.alias, visitor.actor)
    place = PATH if gone.model == gone.alias else _place(gone.model, "names")
    return go(visitor, place, f"{gone.alias} is no name of a model's any more, unless the settings have it.")


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
    return go(visitor, _place(form.value.model, "price"), "The price holds from the next request on.")


@router.post("/price/remove")
async def remove_price(request: Request, visitor: Operator) -> Response:
    """Raises NotFound, RequestInvalid."""
    gone = _whole(await read_form(request, visitor, Unpricing))
    await visitor.services.model_terms.remove_price(gone.model, visitor.actor)
    return go(visitor, _place(gone.model, "price"), "What the list says is charged from the next request on.")


def _whole(form: Form[M]) -> M:
    """Of a button's form, in which nobody types. Raises RequestInvalid."""
    if form.value is None:
        name, sentence = next(iter(form.errors.items()))
        raise RequestInvalid(f"{name}: {sentence}", param=name)
    return form.value


def _place(model: str, part: str) -> str:
    return f"{PATH}/of?model={quote(model, safe='')}#{part}"

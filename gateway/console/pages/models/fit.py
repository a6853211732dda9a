"""Hardware fit of a model, where it should run, and the break-even of local machines: a recommendation."""

from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from cluster.errors import ModelError
from cluster.models.layer_cost import PRECISIONS, Precision
from gateway.advice.advice import Advice
from gateway.advice.service import Wishes, ask_advice
from gateway.console.access import Operator
from gateway.console.forms import Form, check
from gateway.console.pages.models.overview import PATH
from gateway.console.renderer import page

router = APIRouter(prefix=PATH)


class Fit(BaseModel):
    """A folder or GGUF file on the gateway's machine, or a Hugging Face ID; `compare` is a cloud model's name."""

    model: Annotated[str, Field(max_length=1000, pattern=r"^[^\x00]*$")]
    context_tokens: Annotated[int | None, Field(ge=64, le=2**24)] = None
    precision: Precision | None = None
    compare: Annotated[str | None, Field(max_length=200)] = None


@router.get("/fit")
async def fit(request: Request, visitor: Operator) -> Response:
    given = {
        name: request.query_params.getlist(name)[:1] for name in Fit.model_fields if name in request.query_params
    }
    form: Form[Fit] = check(Fit, given) if given else Form()
    found: Advice | None = None
    if form.value:
        fields = form.value
        try:
            found = await ask_advice(
                visitor.services, fields.model, Wishes(fields.context_tokens, fields.precision, fields.compare)
            )
        except ModelError as error:
            form = form.refused(f"{str(error)[:1].upper()}{str(error)[1:]}.", "model")
    status = 400 if form.errors else 200
    return page("models/fit.html", visitor, status, form=form, advice=found, **_choices(visitor))


def _choices(visitor: Operator) -> dict[str, Any]:
    controller = visitor.services.controller
    cloud = visitor.services.settings.cloud.models
    return {
        "precisions": [("", "Highest precision that fits"), *PRECISIONS],
        "providers": [("", "the same model, if offered"), *cloud],
        "may_load": controller.model is None
        and (controller.model_name is None or controller.status[0] == "failed"),
    }

"""Hardware fit of a model, where it should run, and the break-even of local machines: a recommendation."""

from typing import Any

from fastapi import APIRouter, Request, Response

from cluster.models.layer_cost import PRECISIONS
from gateway.admin.cluster_model import ModelQuestion, advise, loading_refusal
from gateway.console.access import Operator
from gateway.console.forms import Form, check, submit
from gateway.console.pages.models.overview import PATH
from gateway.console.renderer import page

router = APIRouter(prefix=PATH)


@router.get("/fit")
async def fit(request: Request, visitor: Operator) -> Response:
    query = request.query_params
    given = {name: query.getlist(name)[:1] for name in ModelQuestion.model_fields if name in query}
    form: Form[ModelQuestion] = check(ModelQuestion, given) if given else Form()
    found, form = await submit(form, lambda question: advise(visitor.services, question))
    status = 400 if form.errors else 200
    return page("models/fit.html", visitor, status, form=form, advice=found, **_choices(visitor))


def _choices(visitor: Operator) -> dict[str, Any]:
    cloud = visitor.services.settings.cloud.models
    return {
        "precisions": [("", "Highest precision that fits"), *PRECISIONS],
        "providers": [("", "the same model, if offered"), *cloud],
        "may_load": not loading_refusal(visitor.services),
    }

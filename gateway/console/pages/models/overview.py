"""Every model that callers may name; the page of one model; and the hardware fit of further ones."""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from cluster.models.layer_cost import PRECISIONS
from gateway.admin.cluster_model import ModelQuestion, advise, list_models
from gateway.app_state import Controller, Lanes, ModelTerms, PoolLane, Settings, bundle, held
from gateway.console.access import Operator, Viewer, Visitor
from gateway.console.figures.models import precision_of
from gateway.console.forms import Form, check, submit
from gateway.console.live import LivePage, Points, Region, live_response
from gateway.console.pages.models.state import FailedRuns, rows_of, terms_of
from gateway.console.renderer import page, pages_of
from gateway.lanes.pool.kinds.catalogue import KINDS_OF_BACKEND
from runtime.errors import NotFound

PATH = "/console/models"

router = APIRouter(prefix=PATH)

Name = Annotated[str, Query(min_length=1, max_length=256)]
KnownFailures = Annotated[FailedRuns, held("failed_runs")]


@dataclass(frozen=True, slots=True)
class _Models:
    lanes: Lanes
    pool: PoolLane
    controller: Controller
    settings: Settings
    terms: ModelTerms
    failed_runs: KnownFailures


Sources = Annotated[_Models, bundle(_Models)]


@router.get("")
async def show(visitor: Viewer, sources: Sources) -> Response:
    return models_page(visitor, sources)


@router.get("/live")
async def live(visitor: Viewer, sources: Sources) -> Response:
    async def render() -> list[Region | Points]:
        values = _values(visitor, sources)
        parts = ("rows", "cluster", "servers") if visitor.is_operator else ("rows",)
        return [Region(f"models-{part}", f"models/{part}.html", values) for part in parts]

    scope = visitor.caller.key_id or visitor.caller.user_id
    if visitor.is_operator:
        scope = f"instance:{visitor.may_administer}"
    return await live_response(visitor, LivePage(f"models:{scope}", render, 2.0))


@router.get("/of")
async def show_one(visitor: Viewer, sources: Sources, model: Name) -> Response:
    return await model_page(visitor, sources, model)


async def model_page(
    visitor: Visitor, sources: Sources, model: str, status: int = 200, **forms: Form[Any]
) -> Response:
    """Show a model, with rejected forms if there are any: `alias`, `price`. Raises NotFound."""
    row = next((row for row in rows_of(visitor, sources.lanes, sources.pool.pool) if row.name == model), None)
    if row is None:
        raise NotFound(f"Model {model} not found, or not available to you.")
    built = {there.path for there in pages_of(visitor.request)}
    values: dict[str, Any] = {"row": row, "built": built, "precision_of": precision_of}
    if visitor.is_operator:
        values |= await terms_of(sources.terms, row)
        values["chat"] = sources.controller.chat_of(row.name, *row.alias_of)
    return page("models/model.html", visitor, status, is_operator=visitor.is_operator, **(values | forms))


def models_page(visitor: Visitor, sources: Sources, status: int = 200, **values: Any) -> Response:
    """Show all models, with a rejected form if there is one: `add` for a server, `scan`."""
    forms: dict[str, Any] = {"add": Form(), "seen": None, "scan": Form()}
    kinds = [("auto", "Detect automatically"), *((kind, facts.title) for kind, facts in KINDS_OF_BACKEND.items())]
    return page(
        "models/page.html", visitor, status, **(_values(visitor, sources) | forms | {"kinds": kinds} | values)
    )


def _values(visitor: Visitor, sources: Sources) -> dict[str, Any]:
    pool = sources.pool.pool
    values: dict[str, Any] = {"rows": rows_of(visitor, sources.lanes, pool), "is_operator": visitor.is_operator}
    if visitor.is_operator:
        values |= {
            "may_change": visitor.may_administer,
            "cluster_models": list_models(sources.settings.cluster, sources.controller),
            "failed_runs": sources.failed_runs.newest(),
            "backends": [backend.as_data() for backend in pool.backends()],
            "aliases": sources.terms.every_alias(),
        }
    return values


@router.get("/fit")
async def fit(request: Request, visitor: Operator, sources: Sources) -> Response:
    query = request.query_params
    given = {name: query.getlist(name)[:1] for name in ModelQuestion.model_fields if name in query}
    form: Form[ModelQuestion] = check(ModelQuestion, given) if given else Form()
    found, form = await submit(
        form, lambda question: advise(sources.settings, sources.lanes, sources.controller, question)
    )
    status = 400 if form.errors else 200
    choices = {
        "precisions": [("", "Highest precision that fits"), *PRECISIONS],
        "providers": [("", "the same model, if offered"), *sources.settings.cloud.models],
    }
    return page("models/fit.html", visitor, status, form=form, advice=found, **choices)

"""The cluster's models: the form that runs one, and the buttons that load, stop and remove one."""

import asyncio
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Request, Response
from pydantic import Field

from cluster.models.layer_cost import PRECISIONS
from gateway.admin import cluster_model
from gateway.admin.cluster_model import IDLE_S_MAX, NamedModel, NewModel
from gateway.app_state import Afterwork, Controller, Settings
from gateway.console.access import Operator, Visitor
from gateway.console.forms import Form, read_form, submit_form
from gateway.console.pages.models.overview import PATH, KnownFailures
from gateway.console.pages.models.state import FailedRuns
from gateway.console.renderer import go, page
from runtime.errors import NotFound, ServiceError

log = structlog.get_logger(__name__)

router = APIRouter(prefix=PATH)

# After this time the response no longer waits for errors of the model's files; the page shows them.
_PATIENCE_S = 3.0


class RunForm(NewModel):
    """The form has minutes for `idle_s`."""

    idle_min: Annotated[float | None, Field(ge=0, le=IDLE_S_MAX / 60)] = None

    def wanted(self) -> NewModel:
        idle_s = None if self.idle_min is None else 60 * self.idle_min
        return NewModel(**self.model_dump(exclude={"idle_min", "idle_s"}), idle_s=idle_s)


@router.get("/run")
async def show_form(request: Request, visitor: Operator, controller: Controller) -> Response:
    """Show the form, filled in with the fields of the query."""
    query = request.query_params
    given = {name: query.getlist(name)[:1] for name in RunForm.model_fields if name in query}
    return _form_page(visitor, controller, Form(given=given))


@router.post("/run")
async def run(
    visitor: Operator, controller: Controller, failed_runs: KnownFailures, afterwork: Afterwork
) -> Response:
    """Download, read and check the model in the background; the list shows the progress."""

    async def begin(form: RunForm) -> str:
        new = form.wanted()
        await cluster_model.allow_run(visitor.authority, controller, new)
        result: asyncio.Future[ServiceError | None] = asyncio.get_running_loop().create_future()
        afterwork.begin(_run(controller, new, result, failed_runs))
        await asyncio.wait((result,), timeout=_PATIENCE_S)
        if not result.done():
            result.cancel()
        elif problem := result.result():
            raise problem
        return new.spec().name

    name, form = await submit_form(visitor, RunForm, begin)
    if name is None:
        return _form_page(visitor, controller, form, 400)
    return go(visitor, f"{PATH}#cluster-models", f"{name} is being read and loaded.")


async def _run(
    controller: Controller,
    new: NewModel,
    result: "asyncio.Future[ServiceError | None]",
    failed_runs: FailedRuns,
) -> None:
    """Run a model. If the form no longer waits for `result`, the page shows the error."""
    problem: ServiceError | None = None
    failed_runs.forget(new.spec().name)
    try:
        await cluster_model.run_model(controller, new)
    except ServiceError as error:
        problem = error
        log.warning("model not run", model=new.model, reason=problem.message)
    if not result.done():
        result.set_result(problem)
    elif problem:
        failed_runs.add(new.spec().name, problem.message.removeprefix(f"{problem.param}: "))


@router.post("/cluster/{what}")
async def change(visitor: Operator, settings: Settings, controller: Controller, what: str) -> Response:
    """Load, stop or remove a model. Raises NotFound, Conflict, RequestInvalid."""
    model, authority = (await read_form(visitor, NamedModel)).whole().model, visitor.authority
    match what:
        case "load":
            await cluster_model.load_model(authority, controller, model)
            text = f"{model} is being loaded."
        case "stop":
            await cluster_model.stop_model(authority, controller, model)
            text = f"{model} was stopped. The next request loads it again."
        case "remove":
            await cluster_model.remove_model(authority, settings.cluster, controller, model)
            text = f"{model} was removed. Its files stay on disk."
        case _:
            raise NotFound("Unknown action. Use load, stop or remove.")
    return go(visitor, f"{PATH}#cluster-models", text)


def _form_page(visitor: Visitor, controller: Controller, form: Form[Any], status: int = 200) -> Response:
    names = sorted(state.model for state in controller.topology().deployments)
    return page(
        "models/run.html",
        visitor,
        status,
        form=form,
        precisions=[("", "Highest precision that fits"), *PRECISIONS],
        replaceable=[("", "No model"), *names],
        usual_priority=NewModel.model_fields["priority"].default,
    )

"""Recommends where a model should run, and loads it in the cluster: one model for its life, one load at a time."""

from typing import Annotated

from pydantic import Field

from cluster.control.deployment import Model
from cluster.errors import ModelError, ModelNotFound
from cluster.models.layer_cost import Precision
from cluster.models.manifest import Progress
from cluster.models.store import model_name
from gateway.admin.authority import Authority
from gateway.admin.fields import TEXT, Body
from gateway.advice.advice import Advice
from gateway.advice.service import Wishes, ask_advice
from gateway.services import Services
from runtime.errors import Conflict, NotFound, RequestInvalid

Reference = Annotated[str, Field(min_length=1, max_length=1000, pattern=TEXT)]


class NewModel(Body):
    """A folder or GGUF file of the gateway's machine, or a Hugging Face id."""

    model: Reference


class ModelQuestion(NewModel):
    """`compare` is a cloud model's name."""

    compare: Annotated[str | None, Field(max_length=200)] = None
    context_tokens: Annotated[int | None, Field(ge=64, le=2**24)] = None
    precision: Precision | None = None


async def advise(services: Services, question: ModelQuestion) -> Advice:
    """Return every option to run a model, and the recommended one with its reason.

    Raises NotFound if there is no such model, and RequestInvalid if it cannot be used.
    """
    wishes = Wishes(question.context_tokens, question.precision, question.compare)
    try:
        return await ask_advice(services.settings, services.lanes, services.controller, question.model, wishes)
    except ModelNotFound as error:
        raise NotFound(str(error), param="model") from None
    except ModelError as error:
        raise RequestInvalid(f"model: {error}", param="model") from None


def loading_refusal(services: Services) -> str:
    """Return why no other model can be loaded now; empty if one can."""
    controller = services.controller
    if services.loading.locked():
        return f"{controller.chat.model_name} is loading now. Try again when it is loaded."
    if controller.chat.model is None and (
        controller.chat.model_name is None or controller.chat.status[0] == "failed"
    ):
        return ""
    return f"The cluster serves {controller.chat.model_name}. Start the gateway with --model for another one."


async def allow_loading(authority: Authority, reference: str) -> None:
    """Record the load in the audit log. Raises Conflict if the cluster has a model or is loading one."""
    if refusal := loading_refusal(authority.services):
        raise Conflict(refusal, param="model")
    controller = authority.services.controller
    if any(model.model_name == model_name(reference) for model, _ in controller.further):
        raise Conflict(f"The cluster already serves {model_name(reference)}.", param="model")
    await authority.record("cluster.model", f"model:{reference}")


async def read_model(services: Services, reference: str, progress: Progress | None = None) -> Model:
    """Load a model into the cluster and serve it; one at a time. Raises ModelError, Conflict."""
    # Check again, because another caller may have asked during the audit entry.
    if refusal := loading_refusal(services):
        raise Conflict(refusal, param="model")
    async with services.loading:
        return await services.controller.chat.load_model(reference, progress)

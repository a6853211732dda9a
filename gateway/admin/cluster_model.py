"""Loading the cluster's model at an admin's request: one model for its life, one load at a time."""

from typing import Annotated

from pydantic import Field

from cluster.control.deployment import Model
from cluster.models.manifest import Progress
from gateway.admin.authority import Authority
from gateway.admin.fields import TEXT, Body
from gateway.services import Services
from runtime.errors import Conflict

Reference = Annotated[str, Field(min_length=1, max_length=1000, pattern=TEXT)]


class NewModel(Body):
    """A folder or GGUF file of the gateway's machine, or a Hugging Face id."""

    model: Reference


def _refusal(services: Services) -> str:
    """Return why no other model can be loaded now; empty if one can."""
    controller = services.controller
    if services.loading.locked():
        return f"{controller.model_name} is loading now. Try again when it is loaded."
    if controller.model is None and (controller.model_name is None or controller.status[0] == "failed"):
        return ""
    return f"The cluster serves {controller.model_name}. Start the gateway with --model for another one."


async def allow_loading(authority: Authority, reference: str) -> None:
    """Record the load in the audit log. Raises Conflict if the cluster has a model or is loading one."""
    if refusal := _refusal(authority.services):
        raise Conflict(refusal, param="model")
    await authority.record("cluster.model", f"model:{reference}")


async def read_model(services: Services, reference: str, progress: Progress | None = None) -> Model:
    """Load a model into the cluster and serve it; one at a time. Raises ModelError, Conflict."""
    # Check again, because another caller may have asked during the audit entry.
    if refusal := _refusal(services):
        raise Conflict(refusal, param="model")
    async with services.loading:
        return await services.controller.load_model(reference, progress)

"""Recommends where a model should run, and loads it in the cluster: one model for its life, one load at a time."""

import asyncio
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from cluster.controller import Controller
from cluster.errors import ModelError, ModelNotFound
from cluster.models.layer_cost import Precision
from cluster.models.manifest import Progress
from cluster.models.store import model_name
from gateway.admin.authority import Authority
from gateway.admin.fields import TEXT, Body
from gateway.advice.advice import Advice
from gateway.advice.service import Wishes, ask_advice
from gateway.lanes.base import Lanes
from gateway.settings import Settings
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


async def advise(settings: Settings, lanes: Lanes, controller: Controller, question: ModelQuestion) -> Advice:
    """Return every option to run a model, and the recommended one with its reason.

    Raises NotFound if there is no such model, and RequestInvalid if it cannot be used.
    """
    wishes = Wishes(question.context_tokens, question.precision, question.compare)
    try:
        return await ask_advice(settings, lanes, controller, question.model, wishes)
    except ModelNotFound as error:
        raise NotFound(str(error), param="model") from None
    except ModelError as error:
        raise RequestInvalid(f"model: {error}", param="model") from None


@dataclass(frozen=True, slots=True)
class ModelLoader:
    """Loads the cluster's model because an admin asked for it. One event loop owns it."""

    _controller: Controller
    _loading: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def refusal(self) -> str:
        """Why no other model can be loaded now; empty if one can."""
        chat = self._controller.chat
        if self._loading.locked():
            return f"{chat.model_name} is loading now. Try again when it is loaded."
        if chat.model is None and (chat.model_name is None or chat.status[0] == "failed"):
            return ""
        return f"The cluster serves {chat.model_name}. Start the gateway with --model for another one."

    async def allow(self, authority: Authority, reference: str) -> None:
        """Record the load in the audit log. Raises Conflict if the cluster has a model or is loading one."""
        self._refuse_another()
        name = model_name(reference)
        if any(model.model_name == name for model, _ in self._controller.further):
            raise Conflict(f"The cluster already serves {name}.", param="model")
        await authority.record("cluster.model", f"model:{reference}")

    async def load(self, reference: str, progress: Progress | None = None) -> str | None:
        """Load a model into the cluster and serve it; one at a time. Return the name by which callers ask for it.

        Raises ModelError, Conflict.
        """
        # Check again, because another caller may have asked during the audit entry.
        self._refuse_another()
        async with self._loading:
            await self._controller.chat.load_model(reference, progress)
        return self._controller.chat.model_name

    def _refuse_another(self) -> None:
        if refusal := self.refusal:
            raise Conflict(refusal, param="model")

"""The models of the cluster: those of the settings and those that come and go while the gateway runs."""

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from cluster.chat_model import ChatModel
from cluster.control.embedding_manager import EmbeddingManager
from cluster.control.next_plan import PlanOptions
from cluster.control.residency import Residency
from cluster.control.roster import Roster
from cluster.control.specs import DeploymentSpec, SpecFile
from cluster.control.supervisor import Supervisor
from cluster.errors import ModelNotFound, NameTaken
from cluster.models.manifest import Progress
from cluster.trust.identity import Identity

log = structlog.get_logger(__name__)

# Answers of a replaced model may take this much longer.
REPLACE_DRAIN_S = 600.0
# A replacement that has failed this often has failed.
_TRIES = 2
_LOOK_AGAIN_S = 0.1

AnyModel = ChatModel | EmbeddingManager


class Fleet:
    """Every model with its deployment. It is the only writer of the file of those that were added later."""

    def __init__(
        self, folder: Path, identity: Identity, roster: Roster, options: PlanOptions, residence_s: float
    ) -> None:
        self._folder = folder
        self._identity = identity
        self._roster = roster
        self._options = options
        # All deployments. They share the machines' memory.
        self.supervisors: list[Supervisor[Any]] = []
        self.residency = Residency(self.supervisors, roster, residence_s)
        self._file = SpecFile(folder / "deployments.json")
        self._stored: list[DeploymentSpec] = []
        self._added = 0
        self.models: list[AnyModel] = []
        self._finishing: set[asyncio.Task[None]] = set()

    def restore(self) -> list[AnyModel]:
        """Add the stored deployments. Raise ClusterError if their file is damaged."""
        restored = []
        for spec in self._file.read():
            if any(model_spec(model).name == spec.name for model in self.models):
                log.warning(
                    "stored deployment skipped", name=spec.name, reason="a model of the settings has its name"
                )
                continue
            self._stored.append(spec)
            restored.append(self.add(spec))
        return restored

    def add(self, spec: DeploymentSpec, deployment: str | None = None) -> AnyModel:
        """Add a deployment, which callers see from now on."""
        model = self._build(spec, deployment or f"model:{spec.name}")
        self.models.append(model)
        return model

    def _build(self, spec: DeploymentSpec, deployment: str) -> AnyModel:
        subscription = self._roster.subscribe(deployment)
        model: AnyModel
        if spec.kind == "embedding":
            model = EmbeddingManager(
                self._folder, subscription, self._identity, self.supervisors, self._options.owners, spec
            )
        else:
            own = self._options
            if deployment != CHAT:
                own = replace(own, precision=spec.precision, context_tokens=spec.context_tokens, stages_min=1)
            model = ChatModel(self._folder, self._identity, subscription, own, self.supervisors, spec)
        supervisor = supervisor_of(model)
        self.supervisors.append(supervisor)
        self.residency.watch(supervisor)
        return model

    def find(self, name: str) -> AnyModel:
        """Return the model that answers under this name. Raise ModelNotFound."""
        for model in self.models:
            if model.model_name == name:
                return model
        raise ModelNotFound(f"no model of the cluster has the name {name}")

    async def run_model(self, spec: DeploymentSpec, progress: Progress | None) -> str:
        """See `Controller.run_model`."""
        if any(model.model_name == spec.name for model in self.models):
            raise NameTaken(f"the cluster already has a model with the name {spec.name}")
        model = self.add(spec)
        self._store(spec.name, spec)
        try:
            await model.load_model(spec.reference, progress)
        except BaseException:
            await self._forget(model)
            raise
        supervisor_of(model).is_wanted = True
        self.residency.look_again()
        return spec.name

    async def stop_model(self, name: str) -> None:
        """See `Controller.stop_model`."""
        await self.residency.drain(supervisor_of(self.find(name)), "it was stopped")

    async def remove_model(self, name: str) -> None:
        """See `Controller.remove_model`."""
        model = self.find(name)
        await self.residency.drain(supervisor_of(model), "it was removed")
        await self._forget(model)

    async def stop(self) -> None:
        """Close all connections to coordinators and embedders."""
        for task in self._finishing:
            task.cancel()
        await asyncio.gather(*self._finishing, return_exceptions=True)
        for model in self.models:
            await model.stop()

    async def _forget(self, model: AnyModel) -> None:
        supervisor = supervisor_of(model)
        with contextlib.suppress(ValueError):
            self.models.remove(model)
        self.supervisors.remove(supervisor)
        self._roster.suspend(supervisor.subscription)
        spec = model_spec(model)
        if spec in self._stored:
            self._store(spec.name, None)
        await supervisor.readiness.tell("failed", f"{model.model_name} was removed")
        await model.stop()

    def _store(self, name: str, spec: DeploymentSpec | None) -> None:
        """Store this deployment in place of the one with this name. Raise OSError."""
        specs = [each for each in self._stored if each.name != name] + ([spec] if spec else [])
        self._file.write(specs)
        self._stored = specs


CHAT, EMBEDDINGS = "chat", "embeddings"
"""The names of the first deployments. Those of further models begin with "model:"."""


def supervisor_of(model: AnyModel) -> Supervisor[Any]:
    """Return the task that keeps a model served."""
    return model.manager if isinstance(model, ChatModel) else model


def model_spec(model: AnyModel) -> DeploymentSpec:
    """Return what a model's deployment should be."""
    return supervisor_of(model).spec

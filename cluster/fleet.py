"""The models of the cluster: those of the settings and those that come and go while the gateway runs."""

import asyncio
import contextlib
import itertools
from collections.abc import Collection
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
from cluster.errors import ClusterError, ClusterUnavailable, ModelNotFound, ModelUnsupported, NameTaken
from cluster.models.manifest import Progress
from cluster.plans.evictions import Room
from cluster.trust.identity import Identity

log = structlog.get_logger(__name__)

# A replacement that does not serve by then has failed.
LOAD_TIMEOUT_S = 3600.0
# Answers of a replaced model may take this much longer.
REPLACE_DRAIN_S = 600.0
# A replacement that has failed this often has failed.
_TRIES = 2
_LOOK_AGAIN_S = 0.1
# A replacement for which there is memory is being loaded within this time.
_BESIDE_S = 5.0

AnyModel = ChatModel | EmbeddingManager


class ModelFleet:
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
        self.models: list[AnyModel] = []
        # The first models, which the settings name, with the deployments whose options they have.
        self.firsts: dict[AnyModel, str] = {}
        self._replaced: set[Supervisor[Any]] = set()
        self._finishing: set[asyncio.Task[None]] = set()

    def restore(self, reserved: Collection[str]) -> None:
        """Add the stored deployments, other than those whose names the settings use; the file keeps these.

        `reserved` are the names that the first models will have. Raise ClusterError if the file is damaged.
        """
        self._stored = self._file.read()
        for spec in self._stored:
            if spec.name in reserved or any(model_spec(model).name == spec.name for model in self.models):
                log.warning(
                    "stored deployment skipped", name=spec.name, reason="a model of the settings has its name"
                )
            else:
                self.add(spec)

    def add(self, spec: DeploymentSpec, deployment: str | None = None) -> AnyModel:
        """Add a deployment, which callers see from now on."""
        model = self._build(spec, deployment or f"model:{spec.name}", deployment)
        if deployment:
            self.firsts[model] = deployment
        self.models.append(model)
        return model

    def _build(self, spec: DeploymentSpec, deployment: str, first: str | None) -> AnyModel:
        """Return a model, which callers do not see yet. `first` names the first model's deployment that it is."""
        subscription = self._roster.subscribe(self._free(deployment))
        model: AnyModel
        if spec.kind == "embedding":
            model = EmbeddingManager(
                self._folder, subscription, self._identity, self.supervisors, self._options.owners, spec
            )
        else:
            own = replace(self._options, precision=spec.precision, context_tokens=spec.context_tokens)
            own = own if first else replace(own, stages_min=1)
            model = ChatModel(self._folder, self._identity, subscription, own, self.supervisors, spec)
        supervisor = supervisor_of(model)
        self.supervisors.append(supervisor)
        self.residency.watch(supervisor)
        return model

    def _free(self, deployment: str) -> str:
        """Return this name, or one like it, if a deployment that still finishes its answers has it."""
        taken = {each.deployment_name for each in self.supervisors}
        names = itertools.chain([deployment], (f"{deployment}#{number}" for number in itertools.count(2)))
        return next(name for name in names if name not in taken)

    def find(self, name: str) -> AnyModel:
        """Return the model that answers under this name. Raise ModelNotFound."""
        for model in self.models:
            if model.model_name == name:
                return model
        raise ModelNotFound(f"no model of the cluster has the name {name}")

    def _movable(self, name: str) -> AnyModel:
        """Return the model with this name. Raise ModelNotFound, or NameTaken while it is being replaced."""
        model = self.find(name)
        if supervisor_of(model) in self._replaced:
            raise NameTaken(f"{name} is being replaced. Try again when that is done.")
        return model

    async def run_model(self, spec: DeploymentSpec, progress: Progress | None) -> str:
        """See `Controller.run_model`. Raise NameTaken, and ModelNotFound if it is removed meanwhile."""
        if any(model.model_name == spec.name for model in self.models):
            raise NameTaken(f"the cluster already has a model with the name {spec.name}")
        model = self.add(spec)
        try:
            self._store(spec.name, spec)
            await model.load_model(spec.reference, progress)
            self._check_present(model)
        except BaseException:
            await self._forget(model)
            raise
        supervisor_of(model).want()
        return spec.name

    def set_idle(self, name: str, idle_s: float | None) -> None:
        """See `Controller.set_idle`."""
        supervisor = supervisor_of(self.find(name))
        before, spec = supervisor.spec, replace(supervisor.spec, idle_s=idle_s)
        if spec != before:
            if before in self._stored:
                self._store(name, spec)
            supervisor.spec = spec
            self.residency.look_again()

    async def stop_model(self, name: str) -> None:
        """See `Controller.stop_model`."""
        await self.residency.drain(supervisor_of(self._movable(name)), "it was stopped")

    async def remove_model(self, name: str) -> None:
        """See `Controller.remove_model`."""
        model = self._movable(name)
        supervisor = supervisor_of(model)
        with self.residency.held(supervisor):  # Requests that wait for it must not load it again.
            await self.residency.drain(supervisor, "it was removed")
            await self._forget(model)

    async def replace_model(self, old_name: str, spec: DeploymentSpec, progress: Progress | None) -> None:
        """See `Controller.replace_model`. Raise ModelUnsupported for another kind of model."""
        old, residency = self._movable(old_name), self.residency
        before, spec = supervisor_of(old), replace(spec, name=old_name)
        if spec.kind != before.spec.kind:
            raise ModelUnsupported(f"{old_name} can only be replaced by another {before.spec.kind} model")
        self._replaced.add(before)
        try:
            new = self._build(spec, f"model:{old_name}", self.firsts.get(old))
            after = supervisor_of(new)
            after.is_on_trial = True
            try:
                # The old one may be loaded and unloaded meanwhile: this may take hours.
                await new.load_model(spec.reference, progress)
                with residency.held(before):
                    if not await self._is_beside(after):
                        _check(await residency.room_for(after, without=before))
                        await residency.drain(before, f"{spec.reference} replaces it", REPLACE_DRAIN_S)
                    await self._serve(after)
                self._check_present(old)
                if before.spec in self._stored:
                    self._store(old_name, spec)
            except BaseException:
                try:
                    await residency.drain(after, "it cannot replace the other one", 0.0)
                finally:
                    await self._forget(new)
                    if not before.is_resident:
                        before.want()
                raise
            after.is_on_trial = False
            self._take_over(old, new)
        finally:
            self._replaced.discard(before)
        task = asyncio.create_task(self._finish(old), name=f"finish {old_name}")
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)

    async def _is_beside(self, supervisor: Supervisor[Any]) -> bool:
        """Tell whether a deployment is being loaded beside all others. They may be faster to take the memory."""
        if not (await self.residency.room_for(supervisor)).fits_now:
            return False
        supervisor.want()
        for _ in range(int(_BESIDE_S / _LOOK_AGAIN_S)):
            await asyncio.sleep(_LOOK_AGAIN_S)
            if supervisor.is_resident:
                return True
        return False

    async def _serve(self, supervisor: Supervisor[Any]) -> None:
        """Have a deployment loaded. Raise the error of its last try if it cannot be."""
        if not supervisor.is_resident:
            supervisor.want()
        async with asyncio.timeout(LOAD_TIMEOUT_S):
            while supervisor.serving is None or supervisor.readiness.status[0] != "ready":
                status, reason = supervisor.readiness.status
                if status == "failed" or supervisor.failures >= _TRIES:
                    error = supervisor.last_error
                    raise error if isinstance(error, ClusterError) else ClusterUnavailable(reason)
                await asyncio.sleep(_LOOK_AGAIN_S)

    def _take_over(self, old: AnyModel, new: AnyModel) -> None:
        """Have the new model answer under the old one's name, also the requests that wait for the old one."""
        before, after = supervisor_of(old), supervisor_of(new)
        self.models[self.models.index(old)] = new
        if old in self.firsts:
            self.firsts[new] = self.firsts.pop(old)
        self._roster.chronicle.note("ready", f"{after.model_name} is {after.model_source} now", after.epoch)
        before.gate.successor = new
        before.wanted_since_s = None

    async def _finish(self, model: AnyModel) -> None:
        """Let a replaced model finish its answers, and forget it."""
        before = supervisor_of(model)
        with self.residency.held(before):
            try:
                await before.readiness.open()  # This wakes the requests that wait for it.
                await self.residency.drain(before, "it was replaced", REPLACE_DRAIN_S)
            finally:
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
        if supervisor not in self.supervisors:
            return
        name = supervisor.spec.name
        if not any(other.model_name == name for other in self.models if other is not model):
            self._store(name, None)
        self.supervisors.remove(supervisor)
        with contextlib.suppress(ValueError):
            self.models.remove(model)
        self._roster.suspend(supervisor.subscription)
        self.residency.forget(supervisor)
        if first := self.firsts.pop(model, None):  # Its place is empty from now on.
            self.add(DeploymentSpec("", "", supervisor.spec.kind, is_pinned=True), first)
        await supervisor.readiness.tell("failed", f"{model.model_name} was removed")
        await model.stop()

    def _check_present(self, model: AnyModel) -> None:
        """Raise ModelNotFound if a model was removed or replaced meanwhile."""
        if model not in self.models:
            raise ModelNotFound(f"{model.model_name} was removed or replaced meanwhile")

    def _store(self, name: str, spec: DeploymentSpec | None) -> None:
        """Store this deployment in place of the one with this name. Raise OSError."""
        specs = [each for each in self._stored if each.name != name] + ([spec] if spec else [])
        if specs != self._stored:
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


def _check(room: Room) -> None:
    """Raise the reason why nothing makes room for a replacement, not even the end of the old one."""
    if room.error:
        raise room.error
    if room.is_blocked:
        raise ClusterUnavailable(room.reason)

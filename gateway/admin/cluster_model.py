"""Recommends where a model should run; runs, loads, stops, replaces and removes the cluster's models."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

from pydantic import AfterValidator, Field

from cluster.control.specs import PRIORITY, DeploymentKind, DeploymentSpec
from cluster.control.topology import DeploymentState
from cluster.controller import Controller
from cluster.errors import ClusterError, ModelError, ModelNotFound, NameTaken
from cluster.models.layer_cost import Precision
from cluster.models.manifest import Progress
from cluster.models.store import model_name
from gateway.admin.authority import Authority
from gateway.admin.fields import TEXT, Body, Facts
from gateway.advice.advice import Advice
from gateway.advice.service import Wishes, ask_advice
from gateway.errors import StorageUnavailable
from gateway.lanes.base import Lanes
from gateway.lanes.cluster.residence import want_loaded
from gateway.lanes.pool.report import is_safe_name
from gateway.settings import Settings
from gateway.settings.cluster import ClusterSettings
from runtime.errors import Conflict, NotFound, RequestInvalid

IDLE_S_MAX = 366 * 86_400
PRIORITY_MAX = 1000


def _safe(name: str) -> str:
    if not is_safe_name(name):
        raise ValueError("must be a name of up to 256 characters, without `..`")
    return name


def _named(reference: str) -> str:
    try:
        name = model_name(reference)
    except (OSError, RuntimeError):  # too long for a path, or in the home of an unknown user
        name = ""
    if not is_safe_name(name):
        raise ValueError("must be a folder, a GGUF file or a Hugging Face id, with a name that can be shown")
    return reference


Reference = Annotated[str, Field(min_length=1, max_length=1000, pattern=TEXT), AfterValidator(_named)]
Name = Annotated[str, Field(min_length=1, max_length=256, pattern=TEXT)]
ContextTokens = Annotated[int | None, Field(ge=64, le=2**24)]


class ModelQuestion(Body):
    """`model` as in `NewModel`; `compare` is a cloud model's name."""

    model: Reference
    compare: Annotated[str | None, Field(max_length=200)] = None
    context_tokens: ContextTokens = None
    precision: Precision | None = None


class NewModel(Body):
    """A model for the cluster: a folder or GGUF file of the gateway's machine, or a Hugging Face id.

    Callers ask for it by `name`; by default by its folder's name or Hugging Face id. It is unloaded after `idle_s`
    seconds without requests, or, if that is null, only if memory is needed. Then models of lower `priority` are
    unloaded first, and models with `pin` never. It takes the place and the name of the model `replace`.
    """

    model: Reference
    name: Annotated[Name, AfterValidator(_safe)] | None = None
    kind: DeploymentKind = "chat"
    precision: Precision | None = None
    context_tokens: ContextTokens = None
    priority: Annotated[int, Field(ge=0, le=PRIORITY_MAX)] = PRIORITY
    idle_s: Annotated[float | None, Field(ge=0, le=IDLE_S_MAX)] = None
    pin: bool = False
    replace: Name | None = None

    def spec(self) -> DeploymentSpec:
        """Return the deployment, by its name for callers."""
        return DeploymentSpec(
            name=self.replace or self.name or model_name(self.model),
            reference=self.model,
            kind=self.kind,
            precision=self.precision,
            context_tokens=self.context_tokens,
            priority=self.priority,
            idle_s=self.idle_s,
            is_pinned=self.pin,
        )


class NamedModel(Body):
    """A model of the cluster, by its name for callers."""

    model: Name


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


def list_models(settings: ClusterSettings, controller: Controller) -> list[Facts]:
    """Return the cluster's models with their states, by name."""
    topology = controller.topology()
    names = {member.node_id: member.name for member in topology.members}
    reading = {chat.model_name: asdict(chat.reading) for chat in controller.chats if chat.reading}
    found = [
        asdict(state)
        | {
            "machines": [names.get(node_id, node_id) for node_id in state.machines],
            "idle_left_s": idle_left_s(state),
            "reading": reading.get(state.model),
            "setting": setting_of(settings, state.model),
        }
        for state in topology.deployments
    ]
    return sorted(found, key=lambda facts: str(facts["model"]))


def idle_left_s(state: DeploymentState) -> float | None:
    """Return the seconds until the model is unloaded if no request comes; None if it stays, or is not idle. Pure."""
    if state.status != "ready" or state.idle_s is None or state.is_pinned or state.running or state.waiting:
        return None
    ages_s = [age_s for age_s in (state.last_used_s, state.loaded_s) if age_s is not None]
    return max(0.0, state.idle_s - min(ages_s, default=0.0))


def setting_of(settings: ClusterSettings, name: str) -> str | None:
    """Return the setting that names this model; None for a model that was added at run time."""
    if settings.model and name == (settings.served_name or model_name(settings.model)):
        return "cluster.model"
    if settings.embedding_model and name == model_name(settings.embedding_model):
        return "cluster.embedding_model"
    return "cluster.models" if any(model.name == name for model in settings.models) else None


def find_model(controller: Controller, name: str, param: str = "model") -> DeploymentState:
    """Return the state of the model that callers call so. Raises NotFound, which names the field `param`."""
    found = next((state for state in controller.topology().deployments if state.model == name), None)
    if found is None:
        text = f"{param}: model {name!r} not found in the cluster; `millrace ps` lists its models"
        raise NotFound(text, param=param)
    return found


async def allow_run(authority: Authority, controller: Controller, new: NewModel) -> None:
    """Record in the audit log that a model is run.

    Raises:
        Conflict: the name is used.
        NotFound: there is no model to replace.
        RequestInvalid: a model that replaces another has a name of its own.
    """
    spec = new.spec()
    if new.replace is not None:
        find_model(controller, new.replace, "replace")
        if new.name not in (None, new.replace):
            text = "name: a model that replaces another takes over its name; leave name out"
            raise RequestInvalid(text, param="name")
    elif any(state.model == spec.name for state in controller.topology().deployments):
        raise _name_used(new)
    change = new.model_dump(exclude_defaults=True, exclude={"model"})
    await authority.record("cluster.model.run", f"model:{spec.name}", {"reference": new.model} | change)


async def run_model(controller: Controller, new: NewModel, progress: Progress | None = None) -> str:
    """Read a model that `allow_run` has allowed, and have it loaded. Return its name for callers.

    A model that replaces another serves then.

    Raises:
        RequestInvalid: its files cannot be used.
        Conflict: the name was given to another model meanwhile, or the model to replace could not be replaced.
        NotFound: the model to replace was removed meanwhile.
        StorageUnavailable: it cannot be stored.
    """
    spec = new.spec()
    try:
        if new.replace is None:
            return await controller.run_model(spec, progress)
        await controller.replace_model(new.replace, spec, progress)
        return new.replace
    except NameTaken:
        raise _name_used(new) from None
    except ModelNotFound as error:
        raise NotFound(f"model: {error}", param="model") from None
    except ModelError as error:
        raise RequestInvalid(f"model: {error}", param="model") from None
    except (ClusterError, TimeoutError) as error:
        reason = str(error) or "it was not loaded in time"
        text = f"replace: {new.replace} was not replaced and serves again: {reason}"
        raise Conflict(text, param="replace") from None
    except OSError as error:
        raise StorageUnavailable(f"The model cannot be stored: {error.strerror or error}.") from None


async def load_model(authority: Authority, controller: Controller, name: str) -> None:
    """Load a stopped model again, as a request does. Raises NotFound."""
    find_model(controller, name)
    await authority.record("cluster.model.load", f"model:{name}")
    with _of_present_models():
        want_loaded(controller, name)


async def stop_model(authority: Authority, controller: Controller, name: str) -> None:
    """Unload a model when its answers have ended. The next request for it loads it again.

    Raises NotFound, and Conflict while it is being replaced.
    """
    find_model(controller, name)
    await authority.record("cluster.model.stop", f"model:{name}")
    with _of_present_models():
        await controller.stop_model(name)


async def remove_model(authority: Authority, settings: ClusterSettings, controller: Controller, name: str) -> None:
    """Unload a model when its answers have ended, and forget it.

    Raises NotFound, and Conflict if the settings name it or while it is being replaced.
    """
    find_model(controller, name)
    if setting := setting_of(settings, name):
        text = f"model: the setting {setting} names {name}; remove it there and restart, or only stop the model"
        raise Conflict(text, param="model")
    await authority.record("cluster.model.remove", f"model:{name}")
    with _of_present_models():
        await controller.remove_model(name)


@contextmanager
def _of_present_models() -> Generator[None]:
    """Another admin may remove a model during the audit entry, or be replacing it. Raises NotFound, Conflict."""
    try:
        yield
    except NameTaken as error:
        raise Conflict(f"model: {error}", param="model") from None
    except ModelNotFound as error:
        raise NotFound(f"model: {error}", param="model") from None


def _name_used(new: NewModel) -> Conflict:
    if new.replace is not None:
        return Conflict(f"replace: {new.replace} is being replaced already; try again later", param="replace")
    field, name = ("name" if new.name else "model"), new.spec().name
    text = f"{field}: the cluster already has a model {name!r}; choose another name, or replace that model"
    return Conflict(text, param=field)

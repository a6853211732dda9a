"""Loads and unloads a model of the cluster, as Ollama's clients ask for it."""

from cluster.control.readiness import Readiness
from cluster.controller import Controller
from cluster.errors import ClusterUnavailable, ModelNotFound, NameTaken
from cluster.fleet import supervisor_of
from gateway.dialects.model_loading import Upkeep, keep_alive_s
from gateway.errors import LaneBusy, StorageUnavailable
from gateway.lanes.base import Offer
from runtime.errors import LaneFailed


def want_loaded(controller: Controller, name: str) -> Readiness:
    """Have a model loaded, as a request does, and return its readiness. Raises ModelNotFound."""
    found = next((model for model in controller.models if model.model_name == name), None)
    if found is None:
        raise ModelNotFound(f"no model of the cluster has the name {name}")
    supervisor = supervisor_of(found)
    supervisor.want()
    return supervisor.readiness


async def reside(controller: Controller, offer: Offer, upkeep: Upkeep, timeout_s: float) -> None:
    """Return when the model is loaded or unloaded. `keep_alive` of a load sets its idle time.

    Raises LaneFailed, LaneBusy if it is not loaded in time or is being replaced, and StorageUnavailable.
    """
    name, idle_s = offer.model_there, keep_alive_s(upkeep.keep_alive)
    try:
        if upkeep.action == "unload":
            await controller.stop_model(name)
            return
        readiness = want_loaded(controller, name)
        if idle_s is not None:
            controller.set_idle(name, None if idle_s < 0 else idle_s)
        await readiness.wait(timeout_s)
    except ModelNotFound as error:
        raise LaneFailed(f"{offer.label}: {error}") from None
    except NameTaken as error:
        raise LaneBusy(f"{offer.label}: {error}") from None
    except ClusterUnavailable as error:
        raise LaneBusy(error.message, code=error.code) from error
    except OSError as error:
        raise StorageUnavailable(f"The idle time cannot be stored: {error.strerror or error}.") from None

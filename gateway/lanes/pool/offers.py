"""Derives a backend's offers, by every name, from its report and its settings. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.lanes.aliases import Aliases
from gateway.lanes.base import Offer, State
from gateway.lanes.pool.loads import LoadTimes
from gateway.lanes.pool.report import BackendReport, ModelReport, is_safe_name
from gateway.settings.pool import PoolBackend


@dataclass(frozen=True, slots=True)
class Standing:
    """A backend's current state: one word, and a sentence for users."""

    state: State
    note: str = ""


@dataclass(frozen=True, slots=True)
class Offering:
    """Offers by name. `warnings` tell the owner about settings without effect, or with an unexpected one."""

    offers: Mapping[str, Offer]
    warnings: tuple[str, ...] = ()


def offering(
    backend: PoolBackend, report: BackendReport, standing: Standing, aliases: Aliases, loads: LoadTimes
) -> Offering:
    """Return the offers.

    Names in order of precedence: the owner's, the backend's own, its aliases, the gateway's aliases.
    """
    warnings = list(report.warnings)
    served = _served(backend, report, warnings)
    offers = {
        name: _offer(backend, report, standing, name, model, loads, _further(name, model, served))
        for name, model in served.items()
    }
    for alias, targets in aliases.items():
        target = next((name for name in targets if name in served), None)
        if target is None:
            continue
        if alias in offers:
            warnings.append(f"alias {alias} is not used here: the backend has a model of that name")
            continue
        names = (target, *offers[target].stands_for)
        offers[alias] = _offer(backend, report, standing, alias, served[target], loads, names)
    return Offering(offers, tuple(warnings))


def _further(name: str, model: ModelReport, served: Mapping[str, ModelReport]) -> tuple[str, ...]:
    """Return other names by which callers may request this model, if `name` is an alias at its backend."""
    return (model.name,) if model.name != name and model.name in served else ()


def _served(backend: PoolBackend, report: BackendReport, warnings: list[str]) -> dict[str, ModelReport]:
    known: dict[str, ModelReport] = {}
    for model in report.models:
        known.setdefault(model.name, model)
    for model in report.models:
        for alias in model.aliases:
            if is_safe_name(alias):
                known.setdefault(alias, model)
    if not backend.models:
        return known
    served_names = backend.models if isinstance(backend.models, dict) else {name: name for name in backend.models}
    unlisted = sorted(served for served in served_names.values() if served not in known)
    if report.models and unlisted:
        warnings.append(f"not in its list of models: {', '.join(unlisted[:5])}")
    return {name: known.get(served) or ModelReport(served) for name, served in served_names.items()}


def _offer(
    backend: PoolBackend,
    report: BackendReport,
    standing: Standing,
    name: str,
    model: ModelReport,
    loads: LoadTimes,
    stands_for: tuple[str, ...],
) -> Offer:
    own = standing if standing.state != "ready" else Standing(model.state, model.note)
    return Offer(
        lane="pool",
        backend=backend.name,
        model=name,
        state=own.state,
        note=own.note or standing.note,
        features=model.features,
        kinds=model.kinds,
        context_tokens=model.context_tokens,
        slots=backend.slots or model.slots or report.slots,
        served_as=None if model.name == name else model.name,
        stands_for=stands_for,
        # A remote model's requests go to a third party, not to the owner of the address.
        clearance="public" if model.is_remote else backend.cleared_for,
        region=backend.region,
        quantization=backend.quantization or model.quantization,
        keeps_data=backend.keeps_data,
        weight=backend.weight,
        is_resident=model.is_resident,
        load_s=loads.expected_s(model),
        queued=report.queued,
        running=report.running,
        size_bytes=model.load_bytes,
        is_gateway=report.is_gateway,
        weights=model.weights,
    )

"""Another Millrace: its list of models has each model's lanes, features and context length.

If its own cluster has a model, the list also names the weights, which identify replicas. A replica continues
another gateway's broken answer, token for token.
"""

from gateway.dialects.openai import DOES, KINDS, Kind
from gateway.lanes.features import ABILITIES, ALL_FEATURES, Feature
from gateway.lanes.pool.kinds.base import GatewayExtras, ListedModel, positive, read_list
from gateway.lanes.pool.queries import Asker
from gateway.lanes.pool.report import BackendReport, Listing, ModelReport
from gateway.settings.base import FOREIGN

_WEIGHTS_CHARS_MAX = 200


class MillraceReader:
    """Reads GET /models alone."""

    async def read(self, asker: Asker) -> BackendReport:
        listing = Listing()
        for entry in read_list(await asker.models()):
            listing.take(_report(entry))
        return BackendReport(tuple(listing.models.values()), warnings=listing.warnings, is_gateway=True)


def _report(entry: ListedModel) -> ModelReport:
    extras = entry.millrace or GatewayExtras()
    return ModelReport(
        name=entry.id,
        kinds=_kinds(extras.can),
        features=_features(extras.features),
        context_tokens=positive(extras.context_tokens),
        quantization=extras.quantization or None,
        is_resident=extras.is_loaded,
        is_remote=not FOREIGN.isdisjoint(extras.lanes),
        weights=extras.weights if len(extras.weights) <= _WEIGHTS_CHARS_MAX else "",
    )


def _kinds(can: list[str] | None) -> frozenset[Kind]:
    """Return the request kinds; an older Millrace does not report them."""
    return KINDS if can is None else frozenset(kind for kind, words in DOES.items() if words in can)


def _features(reported: list[str] | None) -> frozenset[Feature]:
    """The features that it names. Features that it does not report on are assumed to exist."""
    if reported is None:
        return ALL_FEATURES
    return frozenset(feature for feature in ALL_FEATURES if feature in reported or feature not in ABILITIES)

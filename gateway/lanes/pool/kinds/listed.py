"""Servers that publish little more than a list of models, distinguished by what they cannot do.

mlx-lm (0.20 and later) lists every model in the Hugging Face cache and loads what is asked for. The API of
distributed-llama (0.12 and later) works on one thread, one request after the other, without tools or pictures.
GPUStack lists the models that have ready replicas (/v1, /v1-openai before 2.0).
"""

from dataclasses import dataclass, field

from gateway.dialects.openai import GENERATES, KINDS, Kind
from gateway.lanes.features import ALL_FEATURES, Feature
from gateway.lanes.pool.kinds.base import ListedModel, positive, read_list
from gateway.lanes.pool.queries import Asker
from gateway.lanes.pool.report import BackendReport, Listing, ModelReport, abilities
from gateway.settings.base import FOREIGN


@dataclass(frozen=True, slots=True)
class ListReader:
    """Reads GET /models alone."""

    kinds: frozenset[Kind] = KINDS
    features: frozenset[Feature] = field(default=ALL_FEATURES)
    slots: int | None = None

    async def read(self, asker: Asker) -> BackendReport:
        listing = Listing()
        for entry in read_list(await asker.models()):
            listing.take(self._report(entry))
        return BackendReport(tuple(listing.models.values()), slots=self.slots, warnings=listing.warnings)

    def _report(self, entry: ListedModel) -> ModelReport:
        context = entry.max_model_len or entry.context_length or (entry.meta.n_ctx if entry.meta else None)
        return ModelReport(
            name=entry.id,
            kinds=self.kinds,
            features=self.features,
            context_tokens=positive(context),
            quantization=entry.quantization or None,
            # Another Millrace may be configured as a generic server.
            is_remote=entry.millrace is not None and not FOREIGN.isdisjoint(entry.millrace.lanes),
        )


def mlx_lm() -> ListReader:
    features = abilities(tools=True, vision=False, audio=False) - {"files"}
    return ListReader(kinds=GENERATES, features=features)


def distributed_llama() -> ListReader:
    features = abilities(tools=False, vision=False, audio=False, logprobs=False) - {"files", "json", "suffix"}
    return ListReader(kinds=frozenset(("chat",)), features=features, slots=1)

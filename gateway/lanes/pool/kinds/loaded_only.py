"""Servers that list more models than they can currently answer with: TabbyAPI and exo.

TabbyAPI (2024 and later): /v1/models lists the whole folder for an administrator's key. /v1/model has the loaded
model, or answers 503 if none is loaded. Only its administrator can load another one; a request cannot.

exo (1.0 and later): /v1/models lists runnable models, /ollama/api/ps those with an instance. A model without an
instance answers with an error until an instance is placed.
"""

from msgspec import Struct

from gateway.dialects.openai import GENERATES
from gateway.lanes.pool.kinds.base import ListedModel, positive, read_list
from gateway.lanes.pool.queries import Asker, explain
from gateway.lanes.pool.report import LANGUAGE, BackendReport, Listing, ModelReport, ProbeFailed, abilities


class _CardParameters(Struct, frozen=True):
    max_seq_len: int | None = None
    max_batch_size: int | None = None
    use_vision: bool | None = None


class _Card(Struct, frozen=True):
    id: str
    parameters: _CardParameters | None = None


class TabbyReader:
    async def read(self, asker: Asker) -> BackendReport:
        """Return the current report. Raises ProbeFailed if no model is loaded or the server does not name it."""
        reply = await asker.get("/v1/model")
        card = reply.read(_Card)
        if card is None:
            if reply.status in (400, 503):
                raise ProbeFailed("loading", "has no model loaded; load one through its /v1/model/load")
            raise explain(reply)
        known = card.parameters or _CardParameters()
        listing = Listing()
        listing.take(
            ModelReport(
                name=card.id,
                kinds=LANGUAGE,
                features=abilities(tools=True, vision=known.use_vision is not False),
                context_tokens=positive(known.max_seq_len),
                slots=positive(known.max_batch_size),
            )
        )
        return BackendReport(
            tuple(listing.models.values()), slots=positive(known.max_batch_size), warnings=listing.warnings
        )


class _Instance(Struct, frozen=True):
    model: str = ""
    name: str = ""


class _Instances(Struct, frozen=True):
    models: list[_Instance]


class ExoReader:
    async def read(self, asker: Asker) -> BackendReport:
        """Return the current report. Raises ProbeFailed if no model is placed."""
        listed = read_list(await asker.models())
        placed = (await asker.get("/ollama/api/ps")).read(_Instances)
        names = {one.model or one.name for one in placed.models} if placed else None
        listing = Listing()
        for entry in listed:
            if names is None or entry.id in names:
                listing.take(_exo_model(entry))
        if listed and not listing.models:
            raise ProbeFailed("loading", "has no model placed; place an instance in exo's dashboard")
        return BackendReport(tuple(listing.models.values()), warnings=listing.warnings)


def _exo_model(entry: ListedModel) -> ModelReport:
    return ModelReport(
        name=entry.id,
        kinds=GENERATES | {"image", "image_edit"},
        features=abilities(tools=True, vision=True),
        context_tokens=positive(entry.context_length),
        quantization=entry.quantization or None,
    )

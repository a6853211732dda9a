"""LM Studio: /api/v0/models (0.3.6 and later), and if that is missing, /api/v1/models (0.4 and later).

Both list all models on disk, and mark the loaded ones. A requested model is loaded, unless the owner turned
just-in-time loading off. Then an unloaded model answers with an error, and the next backend is asked.
For requests with log-probabilities, its OpenAI API leaves the field null.
"""

from typing import Any

from msgspec import Struct

from gateway.dialects.openai import Kind
from gateway.lanes.features import Feature
from gateway.lanes.pool.kinds.base import positive
from gateway.lanes.pool.queries import LIST_BYTES_MAX, Asker, explain
from gateway.lanes.pool.report import LANGUAGE, BackendReport, Listing, ModelReport, abilities, kinds_of


class _ModelV0(Struct, frozen=True):
    id: str
    type: str = ""
    state: str = ""
    quantization: str | None = None
    max_context_length: int | None = None
    loaded_context_length: int | None = None
    capabilities: list[str] | None = None


class _ListV0(Struct, frozen=True):
    data: list[_ModelV0]


class _CapabilitiesV1(Struct, frozen=True):
    vision: bool = False
    trained_for_tool_use: bool = False


class _QuantizationV1(Struct, frozen=True):
    name: str | None = None


class _ModelV1(Struct, frozen=True):
    key: str
    type: str = ""
    quantization: _QuantizationV1 | None = None
    size_bytes: int | None = None
    loaded_instances: list[dict[str, Any]] = []
    max_context_length: int | None = None
    capabilities: _CapabilitiesV1 | None = None

    @property
    def loaded_context(self) -> int | None:
        """The context length of its first instance, in tokens."""
        config = self.loaded_instances[0].get("config") if self.loaded_instances else None
        length = config.get("context_length") if isinstance(config, dict) else None
        return positive(length) if isinstance(length, int) else None


class _ListV1(Struct, frozen=True):
    models: list[_ModelV1]


class LmStudioReader:
    async def read(self, asker: Asker) -> BackendReport:
        """Return the current report. Raises ProbeFailed if the server does not list its models."""
        listing = Listing()
        reply = await asker.get("/api/v0/models", LIST_BYTES_MAX)
        if v0 := reply.read(_ListV0):
            for old in v0.data:
                listing.take(_report_v0(old))
        else:
            newer = await asker.get("/api/v1/models", LIST_BYTES_MAX)
            v1 = newer.read(_ListV1)
            if v1 is None:
                raise explain(newer if reply.status == 404 else reply)
            for new in v1.models:
                listing.take(_report_v1(new))
        return BackendReport(tuple(listing.models.values()), warnings=listing.warnings)


def _report_v0(model: _ModelV0) -> ModelReport:
    can = model.capabilities
    return ModelReport(
        name=model.id,
        kinds=_kinds(model.type),
        features=_features(tools=can is None or "tool_use" in can, vision=model.type in ("vlm", "")),
        context_tokens=positive(model.loaded_context_length) or positive(model.max_context_length),
        quantization=model.quantization,
        is_resident=model.state in ("loaded", ""),
    )


def _report_v1(model: _ModelV1) -> ModelReport:
    can = model.capabilities
    return ModelReport(
        name=model.key,
        kinds=_kinds(model.type),
        features=_features(tools=can is None or can.trained_for_tool_use, vision=can is None or can.vision),
        context_tokens=model.loaded_context or positive(model.max_context_length),
        quantization=model.quantization.name if model.quantization else None,
        is_resident=bool(model.loaded_instances),
        load_bytes=model.size_bytes,
    )


def _features(*, tools: bool, vision: bool) -> frozenset[Feature]:
    return abilities(tools=tools, vision=vision, logprobs=False)


def _kinds(kind: str) -> frozenset[Kind]:
    if not kind:
        return LANGUAGE
    is_embedder = kind.startswith("embedding")
    return kinds_of(generates=not is_embedder, embeds=is_embedder)

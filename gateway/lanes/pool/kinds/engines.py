"""vLLM (0.6 and later, both engines) and SGLang (0.4 and later): their lists of models and Prometheus gauges.

Both list what they serve, all of it loaded, with `max_model_len`. SGLang writes gauges only with --enable-metrics;
it tells its model's abilities at /get_model_info and its bound on running requests at /get_server_info, which is
/server_info in newer ones. vLLM publishes no bound.
"""

from dataclasses import dataclass, field

from msgspec import Struct

from gateway.dialects.openai import Kind
from gateway.lanes.features import Feature
from gateway.lanes.pool.gauges import count, read_gauges
from gateway.lanes.pool.kinds.base import ListedModel, positive, read_list
from gateway.lanes.pool.queries import Asker
from gateway.lanes.pool.report import LANGUAGE, BackendReport, Listing, ModelReport, abilities, kinds_of


@dataclass(frozen=True, slots=True)
class _Gauges:
    """Names of the series; the cache's series had another name in older versions."""

    running: str
    waiting: str
    kv_used: tuple[str, ...]


_VLLM = _Gauges(
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
)
_SGLANG = _Gauges("sglang:num_running_reqs", "sglang:num_queue_reqs", ("sglang:token_usage",))


class _ModelInfo(Struct, frozen=True):
    is_generation: bool | None = None
    has_image_understanding: bool | None = None
    has_audio_understanding: bool | None = None


class _ServerInfo(Struct, frozen=True):
    max_running_requests: int | None = None


@dataclass(frozen=True, slots=True)
class _Abilities:
    kinds: frozenset[Kind] = LANGUAGE
    features: frozenset[Feature] = field(default_factory=lambda: abilities(tools=True, vision=True))
    slots: int | None = None


class VllmReader:
    async def read(self, asker: Asker) -> BackendReport:
        # It also serves speech models, and does not report which ones.
        return await _read(asker, _VLLM, _Abilities(kinds=LANGUAGE | {"transcription", "translation"}))


@dataclass(slots=True)
class SglangReader:
    """Queries constant values once, because /get_server_info goes through SGLang's scheduler."""

    _abilities: _Abilities | None = field(default=None, init=False)

    async def read(self, asker: Asker) -> BackendReport:
        if self._abilities is None:
            self._abilities = await _ask_abilities(asker)
        return await _read(asker, _SGLANG, self._abilities)


async def _ask_abilities(asker: Asker) -> _Abilities:
    model = (await asker.get("/get_model_info")).read(_ModelInfo) or _ModelInfo()
    server = (await asker.get("/get_server_info")).read(_ServerInfo)
    server = server or (await asker.get("/server_info")).read(_ServerInfo) or _ServerInfo()
    generates = model.is_generation
    return _Abilities(
        kinds=LANGUAGE if generates is None else kinds_of(generates=generates, embeds=not generates),
        features=abilities(
            tools=True,
            vision=model.has_image_understanding is not False,
            audio=model.has_audio_understanding is not False,
        ),
        slots=positive(server.max_running_requests),
    )


async def _read(asker: Asker, names: _Gauges, can: _Abilities) -> BackendReport:
    listed = read_list(await asker.models())
    metrics = await asker.get("/metrics", bytes_max=2**22)
    names_read = (names.running, names.waiting, *names.kv_used)
    gauges = read_gauges(metrics.body, names_read) if metrics.status == 200 else {}
    listing = Listing()
    for entry in listed:
        listing.take(_report(entry, can))
    return BackendReport(
        tuple(listing.models.values()),
        slots=can.slots,
        running=count(gauges, names.running),
        queued=count(gauges, names.waiting),
        kv_used=next((min(1.0, gauges[name]) for name in names.kv_used if name in gauges), None),
        warnings=listing.warnings,
    )


def _report(entry: ListedModel, can: _Abilities) -> ModelReport:
    return ModelReport(
        name=entry.id, kinds=can.kinds, features=can.features, context_tokens=positive(entry.max_model_len)
    )

"""llama-server of llama.cpp, as of b4000 and later: /v1/models, /props, /slots, /metrics.

It serves one model, or in router mode its whole cache, whose `status` says which models are loaded. While a model
is loading every endpoint answers 503. /metrics exists only with --metrics.

Newer versions may sleep when idle. /props, /models and /metrics do not wake them; /slots does, and is therefore
only requested from older versions, which have no `is_sleeping`.

It embeds only with --embeddings and reranks only with --reranking, and none of these endpoints reports the flags.
Without the flag it answers such a request with 501, before it reads the body. Older versions have no /v1/rerank
and answer with 404. So the reader sends it empty requests until it has answered each of them once.
"""

from dataclasses import dataclass, field
from pathlib import PurePosixPath, PureWindowsPath

from msgspec import Struct

from gateway.dialects.openai import GENERATES, Kind
from gateway.lanes.features import Feature
from gateway.lanes.pool.gauges import count, read_gauges
from gateway.lanes.pool.kinds.base import ListedModel, positive, read_list
from gateway.lanes.pool.queries import Asker, Reply
from gateway.lanes.pool.report import LANGUAGE, BackendReport, Listing, ModelReport, abilities

_RUNNING = "llamacpp:requests_processing"
_WAITING = "llamacpp:requests_deferred"
_TASKS = {"generate": "/v1/completions", "embed": "/v1/embeddings", "rerank": "/v1/rerank"}
# Any other status comes from a proxy or a loading server, and says nothing about the server's tasks.
_SUPPORTED = frozenset((200, 400, 422))
_NOT_SUPPORTED = 501
_NO_ROUTE = frozenset((404, 405))
# Embeddings for each token instead of one for the text: OpenAI's API does not have these.
_NO_POOLING = b"Pooling type 'none'"
_EMBEDDING_FLAGS = frozenset(("--embedding", "--embeddings"))
_RERANKING_FLAGS = frozenset(("--rerank", "--reranking"))


class _Generation(Struct, frozen=True):
    n_ctx: int | None = None


class _Modalities(Struct, frozen=True):
    vision: bool = False
    audio: bool = False


class _TemplateCaps(Struct, frozen=True):
    supports_tools: bool | None = None


class _Props(Struct, frozen=True):
    total_slots: int | None = None
    default_generation_settings: _Generation | None = None
    model_ftype: str | None = None
    modalities: _Modalities | None = None
    chat_template_caps: _TemplateCaps | None = None
    is_sleeping: bool | None = None

    @property
    def features(self) -> frozenset[Feature]:
        """Older versions report neither; without a report, the feature is assumed to exist."""
        tools = self.chat_template_caps.supports_tools if self.chat_template_caps else None
        modalities = self.modalities or _Modalities(vision=True, audio=True)
        return abilities(tools=tools is not False, vision=modalities.vision, audio=modalities.audio)


class _Slot(Struct, frozen=True):
    is_processing: bool = False


@dataclass(slots=True)
class LlamaServerReader:
    """Queries each task once, because a running server's tasks do not change."""

    _supports: dict[str, bool] = field(default_factory=dict, init=False)

    async def read(self, asker: Asker) -> BackendReport:
        listed = read_list(await asker.models())
        props = (await asker.get("/props")).read(_Props) or _Props()
        running, queued = await _load(asker, may_sleep=props.is_sleeping is not None)
        is_router = any(entry.status for entry in listed)
        if not props.is_sleeping and not is_router:
            await self._ask_tasks(asker)
        listing = Listing()
        for entry in listed:
            listing.take(_report(entry, props, self._kinds))
        return BackendReport(
            tuple(listing.models.values()), positive(props.total_slots), running, queued, warnings=listing.warnings
        )

    async def _ask_tasks(self, asker: Asker) -> None:
        """Facts that no answer reports are requested again with the next probe."""
        for task, path in _TASKS.items():
            if task in self._supports:
                continue
            supports = _read_support(task, await asker.post(path, {}))
            if supports is not None:
                self._supports[task] = supports

    @property
    def _kinds(self) -> frozenset[Kind] | None:
        """The tasks; None while the server has reported nothing."""
        if not self._supports:
            return None
        embeds, reranks = self._supports.get("embed", False), self._supports.get("rerank", False)
        generates = self._supports.get("generate", not (embeds or reranks))
        return _kinds(generates=generates, embeds=embeds, reranks=reranks)


def _read_support(task: str, reply: Reply) -> bool | None:
    """Return whether the server does a task, None if unknown.

    Every version can generate: only a proxy can hide it.
    """
    if reply.status == _NOT_SUPPORTED or _NO_POOLING in reply.body:
        return False
    if reply.status in _NO_ROUTE:
        return None if task == "generate" else False
    return True if reply.status in _SUPPORTED else None


def _kinds(*, generates: bool, embeds: bool, reranks: bool) -> frozenset[Kind]:
    """Return the request kinds.

    A reranking server also accepts texts to embed, but a relevance is no embedding.
    """
    found: set[Kind] = set(GENERATES) if generates else set()
    if reranks:
        found.add("rerank")
    elif embeds:
        found.add("embedding")
    return frozenset(found)


def _kinds_by_args(args: list[str]) -> frozenset[Kind]:
    embeds, reranks = not _EMBEDDING_FLAGS.isdisjoint(args), not _RERANKING_FLAGS.isdisjoint(args)
    return _kinds(generates=not (embeds or reranks), embeds=embeds, reranks=reranks)


async def _load(asker: Asker, *, may_sleep: bool) -> tuple[int | None, int | None]:
    """The numbers of running and waiting requests, each None if it is not reported."""
    metrics = await asker.get("/metrics")
    gauges = read_gauges(metrics.body, (_RUNNING, _WAITING)) if metrics.status == 200 else {}
    running = count(gauges, _RUNNING)
    if running is None and not may_sleep and (slots := (await asker.get("/slots")).read(list[_Slot])) is not None:
        running = sum(slot.is_processing for slot in slots)
    return running, count(gauges, _WAITING)


def _report(entry: ListedModel, props: _Props, kinds: frozenset[Kind] | None) -> ModelReport:
    """`kinds` are those of a single model; a router reports each model's own arguments."""
    meta, status = entry.meta, entry.status
    if status is not None and status.args is not None:
        kinds = _kinds_by_args(status.args)
    context = positive(meta.n_ctx) if meta else None
    if context is None and props.default_generation_settings:
        context = positive(props.default_generation_settings.n_ctx)
    failed = status is not None and status.failed
    return ModelReport(
        name=entry.id,
        kinds=LANGUAGE if kinds is None else kinds,
        features=_features(entry, props),
        context_tokens=context,
        quantization=(meta.ftype if meta else None) or props.model_ftype,
        is_resident=not props.is_sleeping if status is None else status.value == "loaded",
        load_bytes=meta.size if meta else None,
        aliases=_aliases(entry),
        state="down" if failed else "ready",
        note="could not be loaded there; see llama-server's log" if failed else "",
    )


def _features(entry: ListedModel, props: _Props) -> frozenset[Feature]:
    if entry.architecture is None:
        return props.features
    takes = entry.architecture.input_modalities
    seen = abilities(tools=True, vision="image" in takes, audio="audio" in takes)
    return seen & props.features if props.total_slots else seen


def _aliases(entry: ListedModel) -> tuple[str, ...]:
    """Return its aliases, and the file's name if its name is a whole path."""
    names = set(entry.aliases or ())
    if "/" in entry.id or "\\" in entry.id:
        path = PureWindowsPath(entry.id) if "\\" in entry.id else PurePosixPath(entry.id)
        if path.suffix == ".gguf":
            names.add(path.stem)
    return tuple(sorted(names - {entry.id}))

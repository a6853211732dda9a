"""Ollama, as of its versions 0.6 to 0.12: /api/tags, /api/ps, /api/show and /api/version.

It lists the models on disk, and loads any requested one. /api/ps lists the models in memory with the context that
they were loaded with. Longer prompts are cut silently, so that context is used. The number of parallel requests
(OLLAMA_NUM_PARALLEL) is not published. Models with a `remote_host` are not computed there.
Log-probabilities exist since 0.12.11, but not for remote hosts; older versions ignore the field.
"""

import asyncio
import re
from typing import Any

from msgspec import Struct

from gateway.dialects.openai import Kind
from gateway.lanes.features import Feature
from gateway.lanes.pool.kinds.base import positive
from gateway.lanes.pool.queries import LIST_BYTES_MAX, Asker, explain
from gateway.lanes.pool.report import (
    LANGUAGE,
    BackendReport,
    Listing,
    ModelReport,
    ProbeFailed,
    abilities,
    kinds_of,
)

_SHOWN_PER_PROBE = 16
_AT_ONCE = 4
_LOGPROBS_SINCE = (0, 12, 11)
_VERSION = re.compile(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})")
_NUM_CTX = re.compile(r"^num_ctx\s+(\d{1,9})\s*$", re.MULTILINE)


class _Details(Struct, frozen=True):
    quantization_level: str | None = None


class _Tag(Struct, frozen=True):
    name: str
    digest: str = ""
    size: int | None = None
    details: _Details | None = None
    remote_host: str | None = None


class _Tags(Struct, frozen=True):
    models: list[_Tag] | None


class _Loaded(Struct, frozen=True):
    name: str
    context_length: int | None = None


class _Running(Struct, frozen=True):
    models: list[_Loaded] | None


class _Show(Struct, frozen=True):
    capabilities: list[str] | None = None
    parameters: str | None = None
    model_info: dict[str, Any] | None = None

    @property
    def context_tokens(self) -> int | None:
        """Return the context length set by the model's file, otherwise the length it was trained for."""
        if found := _NUM_CTX.search(self.parameters or ""):
            return positive(int(found[1]))
        named = (value for name, value in (self.model_info or {}).items() if name.endswith(".context_length"))
        return next((positive(value) for value in named if isinstance(value, int)), None)


class _Version(Struct, frozen=True):
    version: str = ""

    @property
    def has_logprobs(self) -> bool:
        """Return whether the version has log-probabilities.

        A build from source has no version number: assume that it does.
        """
        found = _VERSION.match(self.version)
        return not found or found[0] == "0.0.0" or tuple(map(int, found.groups())) >= _LOGPROBS_SINCE


class OllamaReader:
    """Caches /api/show: the answer is long, and holds while the digest is the same.

    The version is also cached: a server that was unreachable gets a new reader."""

    def __init__(self) -> None:
        self._version: _Version | None = None
        self._shown: dict[tuple[str, str], _Show] = {}

    async def read(self, asker: Asker) -> BackendReport:
        """Return the current report. Raises ProbeFailed if the server does not list its models."""
        reply = await asker.get("/api/tags", LIST_BYTES_MAX)
        tags = reply.read(_Tags)
        if tags is None:
            raise explain(reply)
        running = (await asker.get("/api/ps")).read(_Running)
        loaded = {one.name: one for one in (running.models or ())} if running else None
        self._version = self._version or (await asker.get("/api/version")).read(_Version) or _Version()
        await self._show_new(asker, tags.models or [])
        listing = Listing()
        for tag in tags.models or ():
            listing.take(self._report(tag, loaded))
        return BackendReport(tuple(listing.models.values()), warnings=listing.warnings)

    async def _show_new(self, asker: Asker, tags: list[_Tag]) -> None:
        """Ask about models not seen before, some at each probe."""
        present = {(tag.name, tag.digest) for tag in tags}
        self._shown = {key: shown for key, shown in self._shown.items() if key in present}
        new = [key for tag in tags if (key := (tag.name, tag.digest)) not in self._shown][:_SHOWN_PER_PROBE]
        for start in range(0, len(new), _AT_ONCE):
            await asyncio.gather(*(self._show(asker, key) for key in new[start : start + _AT_ONCE]))

    async def _show(self, asker: Asker, key: tuple[str, str]) -> None:
        try:
            shown = (await asker.post("/api/show", {"model": key[0]})).read(_Show)
        except ProbeFailed:
            return  # Asked again at the next probe; until then its abilities are unknown.
        self._shown[key] = shown or _Show()

    def _report(self, tag: _Tag, loaded: dict[str, _Loaded] | None) -> ModelReport:
        """`loaded` is None if the server does not report the models in memory."""
        shown = self._shown.get((tag.name, tag.digest)) or _Show()
        here = (loaded or {}).get(tag.name)
        return ModelReport(
            name=tag.name,
            kinds=_kinds(shown.capabilities),
            features=_features(shown.capabilities, logprobs=self._has_logprobs and not tag.remote_host),
            context_tokens=(positive(here.context_length) if here else None) or shown.context_tokens,
            quantization=tag.details.quantization_level if tag.details else None,
            is_resident=loaded is None or here is not None or tag.remote_host is not None,
            load_bytes=tag.size,
            aliases=(tag.name.removesuffix(":latest"),) if tag.name.endswith(":latest") else (),
            is_remote=bool(tag.remote_host),
        )

    @property
    def _has_logprobs(self) -> bool:
        return self._version is None or self._version.has_logprobs


def _kinds(can: list[str] | None) -> frozenset[Kind]:
    """Models that generate are taken for embeddings, too."""
    return LANGUAGE if can is None else kinds_of(generates="completion" in can, embeds=True)


def _features(can: list[str] | None, *, logprobs: bool) -> frozenset[Feature]:
    if can is None:
        return abilities(tools=True, vision=True, logprobs=logprobs)
    features = abilities(tools="tools" in can, vision="vision" in can, audio="audio" in can, logprobs=logprobs)
    return features if "insert" in can else features - {"suffix"}

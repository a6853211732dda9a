"""A backend's report about itself, in one format for all kinds."""

import re
from dataclasses import dataclass, field
from typing import Literal

from gateway.dialects.openai import GENERATES, KINDS, Kind
from gateway.lanes.base import State
from gateway.lanes.features import ALL_FEATURES, Feature

MODELS_MAX = 2_000
NAME_CHARS_MAX = 256

EMBEDS: frozenset[Kind] = frozenset(("embedding", "rerank"))
# The request kinds assumed for a server of language models that does not report its kinds.
LANGUAGE: frozenset[Kind] = GENERATES | EMBEDS

# This includes characters that reverse or hide text, such as U+202E.
_PARENT = re.compile(r"(^|[/\\])\.\.([/\\]|\Z)")

Problem = Literal["unreachable", "timeout", "refused", "loading", "strange"]


@dataclass(frozen=True, slots=True)
class ModelReport:
    """One model of a backend. A value that the backend did not publish is None, or the widest possible.

    `aliases` are further names that the backend itself takes. `load_bytes` is how much must be read to load it.
    `is_remote`: the backend only forwards requests to a third party. `state` and `note` are the model's own, if
    they differ from the backend's. `weights` are an offer's.
    """

    name: str
    kinds: frozenset[Kind] = KINDS
    features: frozenset[Feature] = ALL_FEATURES
    context_tokens: int | None = None
    quantization: str | None = None
    slots: int | None = None
    is_resident: bool = True
    load_bytes: int | None = None
    is_remote: bool = False
    aliases: tuple[str, ...] = ()
    state: State = "ready"
    note: str = ""
    weights: str = ""


@dataclass(frozen=True, slots=True)
class BackendReport:
    """A backend's answer to a probe. `running` and `queued` count the requests of all its clients.

    `kv_used` is the used share of its KV cache, from 0 to 1. `is_gateway`: it serves other clients too, in an
    order of its own.
    """

    models: tuple[ModelReport, ...] = ()
    slots: int | None = None
    running: int | None = None
    queued: int | None = None
    kv_used: float | None = None
    warnings: tuple[str, ...] = ()
    is_gateway: bool = False


class ProbeFailed(Exception):
    """The backend did not list its models. `note` says why, with the remedy if there is one."""

    def __init__(self, problem: Problem, note: str) -> None:
        super().__init__(note)
        self.problem = problem
        self.note = note


@dataclass(slots=True)
class Listing:
    """Collects models one by one, refuses invalid names, and counts them."""

    models: dict[str, ModelReport] = field(default_factory=dict)
    refused: int = 0
    left_off: int = 0

    def take(self, model: ModelReport) -> None:
        if not is_safe_name(model.name):
            self.refused += 1
        elif len(self.models) >= MODELS_MAX:
            self.left_off += 1
        else:
            self.models.setdefault(model.name, model)

    @property
    def warnings(self) -> tuple[str, ...]:
        found = []
        if self.refused:
            found.append(
                f"{self.refused} model names are unusable (too long, control characters or ..); rename them"
            )
        if self.left_off:
            found.append(f"{self.left_off} models past the first {MODELS_MAX} are left out; name those you want")
        return tuple(found)


def is_safe_name(name: str) -> bool:
    """Whether a model's name may go into answers, logs and addresses."""
    return 0 < len(name) <= NAME_CHARS_MAX and name.isprintable() and not _PARENT.search(name)


def abilities(*, tools: bool, vision: bool, audio: bool = True, logprobs: bool = True) -> frozenset[Feature]:
    """Return a model's features on a desktop server, which reports these abilities."""
    lacking: set[Feature] = {"hosted_tools", "web_search"}
    if not tools:
        lacking.add("tools")
    if not vision:
        lacking |= {"vision", "remote_media"}
    if not audio:
        lacking.add("audio")
    if not logprobs:
        lacking |= {"logprobs", "echo_logprobs"}
    return ALL_FEATURES - lacking


def kinds_of(*, generates: bool, embeds: bool) -> frozenset[Kind]:
    """Return the request kinds of a model. A model that reports neither may serve both."""
    if not generates and not embeds:
        return LANGUAGE
    return (GENERATES if generates else frozenset()) | (EMBEDS if embeds else frozenset())

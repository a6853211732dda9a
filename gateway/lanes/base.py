"""The interface of every lane: its offers, and opening an answer to a call."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from accounting.metering.prices import PricedModel
from gateway.dialects.openai import KINDS, GenerationRequest, Kind, Request, TaskRequest
from gateway.dialects.openai.prompt_estimate import estimate_prompt
from gateway.lanes.body import Body, GeneratorBody, Out, begun
from gateway.lanes.features import ALL_FEATURES, Feature, features_of
from gateway.lanes.usage import Meter
from gateway.settings import LaneName
from gateway.settings.base import Privacy

__all__ = [
    "Answer",
    "Body",
    "Call",
    "GeneratorBody",
    "Lane",
    "Lanes",
    "Meter",
    "Offer",
    "Out",
    "State",
    "VersionedLane",
    "begun",
]

State = Literal["ready", "starting", "draining", "down"]


@dataclass(frozen=True, slots=True)
class Offer:
    """One model at one backend of a lane, as routing sees it now. `note` explains a state in words.

    `served_as` is the model's name at the backend, if callers know it by an alias. If `model` is an alias,
    `stands_for` are the other names by which callers may request the same model; limits on them also apply.
    `clearance` is the most private label that may go there. `is_resident` is False if the model must be loaded
    first, which takes about `load_s`.
    `queued` and `running` count all requests at the backend as it reports them; None if it reports nothing.
    `continues`: if the last message of a chat is the assistant's, the backend continues its text.
    `weights` identify the model's exact bytes and precision, if the backend can continue after given tokens:
    offers of equal weights answer with equal tokens.
    `place` is its position, from 1, if its lane ordered its offers at random; the first is asked first.
    `is_gateway`: the backend is another Millrace, with requests of its own.
    `first_token_s` (after a prompt of 512 tokens) and `token_s` are its plan's predictions, if it has a plan.
    `size_bytes` of the model's weights, if the backend says it.
    """

    lane: LaneName
    backend: str
    model: str
    state: State = "ready"
    note: str = ""
    features: frozenset[Feature] = ALL_FEATURES
    kinds: frozenset[Kind] = KINDS
    context_tokens: int | None = None
    slots: int | None = None
    price: PricedModel | None = None
    served_as: str | None = None
    stands_for: tuple[str, ...] = ()
    clearance: Privacy = "private"
    region: str | None = None
    quantization: str | None = None
    keeps_data: bool = False
    weight: float = 1.0
    is_resident: bool = True
    load_s: float = 0.0
    queued: int | None = None
    running: int | None = None
    first_token_s: float | None = None
    token_s: float | None = None
    size_bytes: int | None = None
    continues: bool = False
    weights: str = ""
    place: int = 0
    is_gateway: bool = False
    label: str = field(init=False, compare=False, repr=False)
    """Lane and backend as one word. Computed once, because routing reads it very often."""
    model_there: str = field(init=False, compare=False, repr=False)
    """The model's name at the backend; computed once, too."""

    def __post_init__(self) -> None:
        label = self.lane if self.backend == self.lane else f"{self.lane}:{self.backend}"
        object.__setattr__(self, "label", label)
        object.__setattr__(self, "model_there", self.served_as or self.model)

    @property
    def counted_as(self) -> str:
        """The tokenizer that counts its answers: the model's, or the one that a listing pins."""
        if self.lane == "market" and self.price:
            return f"market/{self.price.source}"
        # For pool models, owners set tokenizers by the names that callers use.
        return self.model if self.lane == "pool" else self.answers_as

    @property
    def answers_as(self) -> str:
        """The model's own name at this gateway, if callers ask for it by an alias."""
        return self.stands_for[0] if self.stands_for else self.model


class Call(Struct, frozen=True):
    """A checked request with its original bytes and the id that every log line and row of it carries.

    Only calls of the same `tenant` share cached prompts. Derived values are computed once.
    """

    id: str
    kind: Kind
    request: Request
    raw: bytes
    tenant: str = ""
    content_type: str = "application/json"
    traceparent: str = ""
    """The caller's span in a trace that it has, as W3C Trace Context writes it."""
    address: str = ""
    """The caller's address for the access log; empty if no connection brought the call."""
    is_preemptible: bool = False
    """The request comes from the market and yields to local requests."""
    _features: dict[Feature, str] | None = None
    _prompt_tokens: int | None = None

    @property
    def features(self) -> dict[Feature, str]:
        """The abilities that the call needs beyond text in and text out, each with the field that requests it."""
        features = self._features
        if features is None:
            features = features_of(self.request)
            force_setattr(self, "_features", features)
        return features

    @property
    def prompt_tokens(self) -> int:
        """Estimate the prompt's tokens without a tokenizer."""
        tokens = self._prompt_tokens
        if tokens is None:
            tokens = estimate_prompt(self.request)
            force_setattr(self, "_prompt_tokens", tokens)
        return tokens

    @property
    def generation(self) -> GenerationRequest:
        """Return the request, for lanes that only generate text."""
        assert not isinstance(self.request, TaskRequest)
        return self.request


class Answer(Struct, frozen=True):
    """An upstream's answer whose first bytes have arrived."""

    status: int
    content_type: str
    body: Body
    meter: Meter = msgspec.field(default_factory=Meter)
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Lane(Protocol):
    """One way to have requests answered: the cluster, the pool, the cloud or the market."""

    name: LaneName

    def models(self) -> list[str]:
        """Return the names for GET /v1/models."""

    def offers(self, model: str) -> list[Offer]:
        """Return an offer for every backend that has this model or should have it. No I/O."""

    async def open(self, call: Call, offer: Offer, wait_s: float = math.inf, /) -> Answer:
        """Open an answer; return when its first bytes have arrived.

        The pool waits for about `wait_s`; other lanes have bounds of their own. Raises LaneFailed if another candidate
        may be tried; GenerationError and RequestInvalid are final.
        """


@runtime_checkable
class VersionedLane(Lane, Protocol):
    """A lane whose offers stay as they are until its version is another one.

    Other lanes draw their offers, or read them from something that does not tell its changes.
    """

    @property
    def version(self) -> object:
        """A value that differs after every change of an offer. No I/O."""


Lanes: TypeAlias = Mapping[LaneName, Lane]

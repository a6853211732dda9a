"""What every lane is to the journey: models on offer, and a call that becomes an answer."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from accounting.postings import CountSource
from accounting.prices import PricedModel
from gateway.lanes.features import ALL_FEATURES, Feature, features_of
from gateway.openai import KINDS, EmbeddingRequest, GenerationRequest, Kind, Request
from gateway.settings import LaneName
from gateway.settings.base import Privacy

State = Literal["ready", "starting", "down"]


@dataclass(frozen=True, slots=True)
class Offer:
    """One model at one backend of a lane, as routing sees it just now. `note` explains a state in words.

    `served_as` is the model's name there, where callers know it by an alias. `clearance` is the most private label
    that may go there. `is_resident` is False where the model must be loaded first, which takes about `load_s`.
    `queued` and `running` are the backend's own word on all its requests, None where it says nothing.
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
    clearance: Privacy = "private"
    region: str | None = None
    quantization: str | None = None
    keeps_data: bool = False
    weight: float = 1.0
    is_resident: bool = True
    load_s: float = 0.0
    queued: int | None = None
    running: int | None = None

    @property
    def label(self) -> str:
        return self.lane if self.backend == self.lane else f"{self.lane}:{self.backend}"


@dataclass(slots=True)
class Meter:
    """What an answer turned out to use; the lane fills it while the bytes pass."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    source: CountSource = "estimate"
    compute_ns: int = 0
    is_complete: bool = False

    def take(self, counted: "Meter") -> None:
        """The token counts of another meter, and where they come from."""
        self.prompt_tokens = counted.prompt_tokens
        self.cached_tokens = counted.cached_tokens
        self.completion_tokens = counted.completion_tokens
        self.source = counted.source


@dataclass(frozen=True, slots=True)
class Call:
    """A checked request with its original bytes and the id that every log line and row of it carries.

    Only calls of the same `tenant` share what is cached of prompts.
    """

    id: str
    kind: Kind
    request: Request
    raw: bytes
    tenant: str = ""

    @property
    def features(self) -> dict[Feature, str]:
        """What a lane must be able to do, beyond text in and text out, and the field that asks for it."""
        return features_of(self.request)

    @property
    def generation(self) -> GenerationRequest:
        """The request, for lanes that only offer to generate."""
        assert not isinstance(self.request, EmbeddingRequest)
        return self.request


@dataclass(frozen=True, slots=True)
class Answer:
    """An upstream that has begun to answer. Closing `body` early, even unread, stops its work at once."""

    status: int
    content_type: str
    body: AsyncGenerator[bytes]
    meter: Meter = field(default_factory=Meter)
    headers: tuple[tuple[bytes, bytes], ...] = ()


async def begun(body: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """A body past its first, empty yield: one that never began would not run its `finally` when closed."""
    await anext(body)
    return body


class Lane(Protocol):
    """A way to have requests answered."""

    name: LaneName

    def models(self) -> list[str]:
        """Names for GET /v1/models."""

    def offers(self, model: str) -> list[Offer]:
        """Every backend that has this model or should have it. No I/O."""

    async def open(self, call: Call, offer: Offer) -> Answer:
        """Begin; the answer's body is a `begun` one.

        Raises LaneFailed while another candidate may still be tried, GenerationError and RequestInvalid for good.
        """

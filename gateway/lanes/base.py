"""What every lane is to the journey: models on offer, and a call that becomes an answer."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from accounting.postings import CountSource
from accounting.prices import PricedModel
from gateway.openai import ChatRequest, Kind, Request
from gateway.settings import LaneName

Feature = Literal["tools", "json", "vision", "audio", "suffix", "best_of"]
State = Literal["ready", "starting", "down"]

ALL_FEATURES: frozenset[Feature] = frozenset(("tools", "json", "vision", "audio", "suffix", "best_of"))


@dataclass(frozen=True, slots=True)
class Offer:
    """One model at one backend of a lane, as routing sees it just now. `note` explains a state in words."""

    lane: LaneName
    backend: str
    model: str
    state: State = "ready"
    note: str = ""
    features: frozenset[Feature] = ALL_FEATURES
    context_tokens: int | None = None
    slots: int | None = None
    price: PricedModel | None = None

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


@dataclass(frozen=True, slots=True)
class Call:
    """A checked request with its original bytes and the id that every log line and row of it carries."""

    id: str
    kind: Kind
    request: Request
    raw: bytes

    @property
    def features(self) -> frozenset[Feature]:
        """What a lane must be able to do, beyond text in and text out."""
        return _chat_features(self.request) if isinstance(self.request, ChatRequest) else self._text_features()

    def _text_features(self) -> frozenset[Feature]:
        wanted: set[Feature] = set()
        if getattr(self.request, "suffix", None):
            wanted.add("suffix")
        if (getattr(self.request, "best_of", None) or 1) > 1:
            wanted.add("best_of")
        return frozenset(wanted)


@dataclass(frozen=True, slots=True)
class Answer:
    """An upstream that has begun to answer. Closing `body` early stops its work at once."""

    status: int
    content_type: str
    body: AsyncGenerator[bytes]
    meter: Meter = field(default_factory=Meter)
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Lane(Protocol):
    """A way to have requests answered."""

    name: LaneName

    def models(self) -> list[str]:
        """Names for GET /v1/models."""

    def offers(self, model: str) -> list[Offer]:
        """Every backend that has this model or should have it. No I/O."""

    async def open(self, call: Call, offer: Offer) -> Answer:
        """Begin. Raises LaneFailed while another candidate may still be tried, GenerationError for good."""


def _chat_features(request: ChatRequest) -> frozenset[Feature]:
    wanted: set[Feature] = set()
    if request.tools or request.functions:
        wanted.add("tools")
    if request.response_format and request.response_format.get("type") not in (None, "text"):
        wanted.add("json")
    if request.modalities and request.modalities != ["text"]:
        wanted.add("audio")
    for message in request.messages:
        if isinstance(message.content, list):
            kinds = {part.type for part in message.content}
            wanted |= {"vision"} if "image_url" in kinds else set()
            wanted |= {"audio"} if kinds & {"input_audio", "file"} else set()
    return frozenset(wanted)

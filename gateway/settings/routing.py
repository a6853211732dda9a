"""Settings of routing between lanes: hard rules and weights."""

from collections.abc import Mapping, Sequence
from typing import Self

from pydantic import Field, model_validator

from gateway.settings.base import LaneName
from runtime.settings import Section

_FALLBACKS_MAX = 8


class PolicySettings(Section):
    lanes: tuple[LaneName, ...] = Field(
        ("cluster", "pool"), description="Lanes that a new key may use.", examples=['["cluster", "pool"]']
    )
    spend_nano_max: int | None = Field(
        None, ge=0, description="Maximum predicted cost of one request, in nano-USD; no limit by default."
    )


class RoutingSettings(Section):
    target_s: float = Field(
        2.0, gt=0, description="Predicted seconds to the first token above which waiting has a cost."
    )
    time_nano_per_s: int = Field(10_000_000, ge=0, description="Cost of a second above the target, in nano-USD.")
    speed_nano_per_s: int = Field(
        1000,
        ge=0,
        description="Cost of every predicted second, in nano-USD; small, so that your machines come first.",
    )
    queue_s: float = Field(
        300.0,
        gt=0,
        description="Maximum wait for a free slot of your backends, in seconds, unless a request sets its own.",
    )
    connections_max: int = Field(
        4096,
        ge=1,
        le=65_536,
        description="Maximum number of concurrent requests at one backend, each on a connection; more wait.",
    )
    queue_length_max: int = Field(
        1000,
        ge=1,
        le=100_000,
        description="Maximum number of requests that wait for one backend's slots; more get a 429.",
    )
    queue_length_of_key_max: int = Field(
        200,
        ge=1,
        le=100_000,
        description="Maximum number of requests of one key that wait for one backend's slots.",
    )
    hedging: bool = Field(
        True, description="Ask a second, idle backend of yours if the first is slower to begin than usual."
    )
    failure_nano: int = Field(50_000_000, ge=0, description="Cost of a failed request, in nano-USD.")
    fallbacks: dict[str, tuple[str, ...]] = Field(
        {},
        description="Fallback models, in order, if a model cannot be served or the prompt is too long for it.",
        examples=['{"big": ["small", "cloud-small"]}'],
    )

    @model_validator(mode="after")
    def _has_no_circles(self) -> Self:
        for model in self.fallbacks:
            chain_of_fallbacks(model, self.fallbacks)
        return self


def chain_of_fallbacks(model: str, fallbacks: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return a model's fallbacks, each followed by its own, every model once. Raises ValueError for a cycle."""
    found: list[str] = []

    def follow(name: str, path: tuple[str, ...]) -> None:
        for other in fallbacks.get(name, ()):
            if other in path:
                raise ValueError(f"fallbacks form a cycle: {' -> '.join((*path, other))}")
            if other not in found:
                found.append(other)
                follow(other, (*path, other))

    follow(model, (model,))
    return tuple(found[:_FALLBACKS_MAX])

"""What decides between lanes: hard rules and weights."""

from pydantic import Field

from gateway.settings.base import LaneName, Section


class PolicySettings(Section):
    lanes: tuple[LaneName, ...] = Field(
        ("cluster", "pool"), description="Lanes that a new key may use.", examples=['["cluster", "pool"]']
    )


class RoutingSettings(Section):
    target_s: float = Field(
        30.0, gt=0, description="Predicted seconds to the first token from which waiting costs."
    )
    time_nano_per_s: int = Field(1_000_000, ge=0, description="Worth of a second past the target, in nano-USD.")
    failure_nano: int = Field(50_000_000, ge=0, description="Worth of avoiding a failed request, in nano-USD.")

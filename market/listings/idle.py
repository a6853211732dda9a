"""When a seller's machines are idle enough to be sold: its own rules, against how its machines are."""

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta, Struct

Hindrance = Literal["own_requests", "gpu", "battery"]

_MINUTE_S = 60


class IdleRule(Struct, frozen=True):
    """Own queue empty for so long, the accelerator no busier than this, and not on battery unless allowed."""

    queue_empty_minutes: Annotated[int, Meta(ge=0, le=1440)] = 5
    gpu_percent_max: Annotated[int, Meta(ge=0, le=100)] = 100
    on_battery: bool = False


@dataclass(frozen=True, slots=True)
class Condition:
    """How the machines are. `queue_empty_s` is 0 while an own request runs; None: nobody can tell.

    `gpu_percent` is what others than the market use of the accelerator.
    """

    queue_empty_s: float
    gpu_percent: float | None = None
    is_on_battery: bool | None = None


def hindrance(rule: IdleRule, condition: Condition) -> Hindrance | None:
    """What keeps the machines from being sold now, None where nothing does.

    What nobody can tell hinders only where the rule asks for it: a desktop without a battery says nothing of one.
    """
    if condition.queue_empty_s <= 0 or condition.queue_empty_s < rule.queue_empty_minutes * _MINUTE_S:
        return "own_requests"
    if rule.gpu_percent_max < 100 and (
        condition.gpu_percent is None or condition.gpu_percent > rule.gpu_percent_max
    ):
        return "gpu"
    return "battery" if condition.is_on_battery and not rule.on_battery else None

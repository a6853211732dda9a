"""Decide when a seller's machines are idle enough to be sold, by its own rules and the machines' state."""

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta, Struct

Hindrance = Literal["own_requests", "gpu", "battery"]

_MINUTE_S = 60


class IdleRule(Struct, frozen=True):
    """The conditions: minutes of an empty own queue, the highest load of the accelerator, and battery power."""

    queue_empty_minutes: Annotated[int, Meta(ge=0, le=1440)] = 5
    gpu_percent_max: Annotated[int, Meta(ge=0, le=100)] = 100
    on_battery: bool = False


@dataclass(frozen=True, slots=True)
class MachineCondition:
    """The state of the machines. `queue_empty_s` is 0 while an own request runs. None means unknown.

    `gpu_percent` is the use of the accelerator by anything other than the market.
    """

    queue_empty_s: float
    gpu_percent: float | None = None
    is_on_battery: bool | None = None


def hindrance(rule: IdleRule, condition: MachineCondition) -> Hindrance | None:
    """Return what keeps the machines from being sold now; None if nothing does.

    Unknown values block only if the rule needs them: a desktop without a battery does not report one.
    """
    if condition.queue_empty_s <= 0 or condition.queue_empty_s < rule.queue_empty_minutes * _MINUTE_S:
        return "own_requests"
    if rule.gpu_percent_max < 100 and (
        condition.gpu_percent is None or condition.gpu_percent > rule.gpu_percent_max
    ):
        return "gpu"
    return "battery" if condition.is_on_battery and not rule.on_battery else None

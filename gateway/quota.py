"""Limits as data: measure, amount, scope and span."""

from dataclasses import dataclass
from typing import Literal

Measure = Literal["requests", "tokens", "concurrency", "spend"]
Span = Literal["minute", "day", "month"]


@dataclass(frozen=True, slots=True)
class Quota:
    """At most `amount` of a measure in a span; spend is in nano-USD, concurrency has no span.

    `scope` is its owner: `key:ID`, `user:ID`, `organization:ID`, or `team:ORG/NAME`, the keys of an organization's
    users with this department. `model` limits it to one model. A minute is any 60 seconds; days and months are
    those of the UTC calendar.
    """

    scope: str
    measure: Measure
    amount: int
    span: Span | None = None
    model: str | None = None

"""The live overview: regions as they change, and the newest points of its charts."""

from typing import Annotated, Any, Literal

from fastapi import Query

from gateway.console.figures.now import LANES, TOGETHER, ChartRow, first_tokens, throughput
from gateway.console.figures.regions import picture_regions
from gateway.console.live import Points, Region
from gateway.services import Services

SpanName = Literal["quarter", "hour", "day"]
Span = Annotated[SpanName, Query(description="Time range of the charts.")]
Whose = Annotated[str, Query(max_length=200, description="Scope of the thirty days: user:ann, organization:lab.")]
SPANS: dict[SpanName, tuple[int, str]] = {
    "quarter": (900, "15 minutes"),
    "hour": (3600, "1 hour"),
    "day": (86_400, "1 day"),
}

# An answer's tokens are counted when it ends, so earlier slots are sent again.
_TOLD_AGAIN = 60
_COMMON = ("pace", "requests", "models", "keys")
# These contain credits.
_OWN = ("alerts", "stats")


def charts(services: Services, span: SpanName, rows_max: int | None = None) -> dict[str, Any]:
    """Return series and rows of the instance's two charts: all rows, or the last `rows_max`."""
    seconds, _ = SPANS[span]
    step_s = services.history.step_s(seconds)
    # Slots before the start are unknown, not zero.
    since = (services.history.since_s - step_s) // step_s
    slots = [slot for slot in services.history.last(seconds) if slot.number > since]
    if rows_max is not None:
        slots = slots[-rows_max:]
    bounds = services.metrics.first_token_seconds.bounds
    lanes = [lane for lane in LANES if lane in services.lanes]
    return {
        "lanes": lanes,
        "throughput": throughput(slots, step_s, lanes, is_under_way=services.admission.in_flight > 0),
        "first_tokens": first_tokens(slots, step_s, bounds),
        "keeps_s": seconds,
        "span": span,
        "spans": [(name, words) for name, (_, words) in SPANS.items()],
    }


def common_regions(values: dict[str, Any]) -> list[Region]:
    """Return the regions that are the same for all viewers of this scope."""
    found = [Region(f"overview-{part}", f"overview/{part}.html", values) for part in _COMMON]
    return found if values["cluster"] is None else [*found, *picture_regions(values["cluster"])]


def own_regions(values: dict[str, Any]) -> list[Region]:
    return [Region(f"overview-{part}", f"overview/{part}.html", values) for part in _OWN]


def points(services: Services, span: SpanName) -> list[Points]:
    # The first rows have too few rows before them.
    drawn = charts(services, span, _TOLD_AGAIN + TOGETHER)
    named: tuple[tuple[str, list[ChartRow]], ...] = (
        ("throughput", drawn["throughput"]),
        ("first-tokens", drawn["first_tokens"]),
    )
    return [Points(name, rows[-_TOLD_AGAIN:]) for name, rows in named]

"""Rows per day for the cost charts: by model or key, and local cost compared with the cloud. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from accounting.money import Price
from gateway.billing.usage_report import DAY_NS
from gateway.console.figures.now import ChartRow
from gateway.console.figures.savings import own_work, saving
from gateway.console.figures.usage import Row, day_start_s

OTHERS = "others"
# As many as a chart has colors, less one for the others.
_DRAWN = 5
_NS_PER_S = 10**9


@dataclass(frozen=True, slots=True)
class Cell:
    """Usage of one model or key on one UTC day; `charged_nano` is in nano-USD."""

    day: str
    name: str
    tokens: int
    charged_nano: int


@dataclass(frozen=True, slots=True)
class Daily:
    """Two charts with one row per day: the names with most usage, then all others combined."""

    names: tuple[str, ...]
    tokens: list[ChartRow]
    charged: list[ChartRow]


def daily(cells: Sequence[Cell], now_ns: int, days: int) -> Daily:
    """Return charts for `cells`, which cover the last `days` days, today included; most expensive first."""
    weight: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for cell in cells:
        charged_nano, tokens = weight[cell.name]
        weight[cell.name] = (charged_nano + cell.charged_nano, tokens + cell.tokens)
    ranked = sorted(
        (name for name in weight if any(weight[name])), key=lambda name: (*(-n for n in weight[name]), name)
    )
    drawn = ranked[:_DRAWN]
    names = (*drawn, OTHERS) if len(ranked) > len(drawn) else tuple(drawn)
    sums: dict[tuple[int, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for cell in cells:
        place = day_start_s(cell.day), cell.name if cell.name in drawn else OTHERS
        tokens, charged_nano = sums[place]
        sums[place] = (tokens + cell.tokens, charged_nano + cell.charged_nano)
    starts = starts_of(now_ns, days)
    return Daily(
        names,
        [[start, *(sums[start, name][0] for name in names)] for start in starts],
        [[start, *(sums[start, name][1] for name in names)] for start in starts],
    )


def against_cloud(
    rows: Iterable[Row], prices: Mapping[str, Sequence[Price]], now_ns: int, days: int
) -> list[ChartRow]:
    """Return for each day the nano-USD paid to third parties, spent on local machines, and saved by them.

    The three add up to the estimated cloud cost of work whose cloud price is known. A day on which local machines
    cost more than the cloud shows no saving. None means that there was work without any known price.
    """
    by_day: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        by_day[day_start_s(row.day)].append(row)
    drawn: list[ChartRow] = []
    for start in starts_of(now_ns, days):
        of_day = by_day.get(start, [])
        saved = saving(own_work((row.lane, row.model, row.used) for row in of_day), prices)
        paid_nano = sum(row.used.cost_nano for row in of_day)
        own_nano = sum(row.used.own_cost_nano for row in of_day)
        is_unknown = saved.unpriced and not saved.is_known
        drawn.append([start, paid_nano, own_nano, None if is_unknown else max(0, saved.saved_nano)])
    return drawn


def starts_of(now_ns: int, days: int) -> list[int]:
    """Return the start of each day in seconds since the epoch, today last."""
    today = now_ns // DAY_NS
    return [day * DAY_NS // _NS_PER_S for day in range(today - days + 1, today + 1)]

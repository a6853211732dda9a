"""The last thirty days as rows for charts and tables: tokens, money, local share, savings, by day. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from accounting.ledger.postings import FROM_CACHE
from accounting.metering.usage import UsageTotal
from accounting.money import Price
from gateway.billing.usage_report import DAY_NS
from gateway.console.figures.now import LANES, ChartRow
from gateway.console.figures.savings import OWN_LANES, Saving, local_share, saving
from gateway.console.figures.usage import Row, day_start_s

OTHERS = "others"
# As many as a chart has colors, less one for the others.
_DRAWN = 5
_NS_PER_S = 10**9


@dataclass(frozen=True, slots=True)
class Spent:
    """Usage under one name. Nano-USD: charged to callers, paid to third parties, cost of local machines' work."""

    name: str
    requests: int
    tokens: int
    local: float | None
    charged_nano: int
    paid_nano: int
    own_nano: int
    saved: Saving


@dataclass(frozen=True, slots=True)
class Month:
    """`lanes` are those with traffic, `models` the busiest ones with all others combined at the end.

    Charts have one row per day; `cached` counts the requests that were served from cache.
    """

    total: Spent
    by_model: tuple[Spent, ...]
    lanes: tuple[str, ...]
    tokens: list[ChartRow]
    models: tuple[str, ...]
    model_tokens: list[ChartRow]
    money: list[ChartRow]
    cached: int

    @property
    def has_cost(self) -> bool:
        return self.total.paid_nano + self.total.own_nano > 0


@dataclass(frozen=True, slots=True)
class Cell:
    """Usage of one model or key on one UTC day; `charged_nano` is in nano-USD."""

    day: str
    name: str
    tokens: int
    charged_nano: int = 0


@dataclass(frozen=True, slots=True)
class Daily:
    """Two charts with one row per day: the names with most usage, then all others combined."""

    names: tuple[str, ...]
    tokens: list[ChartRow]
    charged: list[ChartRow]


def month(rows: Sequence[Row], prices: Mapping[str, Sequence[Price]], now_ns: int, days: int) -> Month:
    """Return the figures of `rows`, which cover the last `days` days, today included."""
    worked = [row for row in rows if row.lane != FROM_CACHE]
    lanes = tuple(lane for lane in LANES if any(row.lane == lane and _tokens(row.used) for row in worked))
    named = _grouped(rows, lambda row: row.model)
    models = sorted(
        (_spent(name, some, prices) for name, some in named.items()), key=lambda s: (-s.tokens, s.name)
    )
    by_model = daily([Cell(row.day, row.model, _tokens(row.used)) for row in worked], now_ns, days)
    by_lane = [Cell(row.day, row.lane, _tokens(row.used)) for row in worked]
    by_day = {day_start_s(day): some for day, some in _grouped(rows, lambda row: row.day).items()}
    return Month(
        _spent("", rows, prices),
        tuple(models),
        lanes,
        _charts(by_lane, lanes, now_ns, days).tokens,
        by_model.names,
        by_model.tokens,
        [[start_s, *_money(by_day.get(start_s, []))] for start_s in starts_of(now_ns, days)],
        sum(row.used.requests for row in rows if row.lane == FROM_CACHE),
    )


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
    return _charts(cells, (*drawn, OTHERS) if len(ranked) > len(drawn) else tuple(drawn), now_ns, days)


def _charts(cells: Iterable[Cell], names: tuple[str, ...], now_ns: int, days: int) -> Daily:
    sums: dict[tuple[int, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for cell in cells:
        place = day_start_s(cell.day), cell.name if cell.name in names else OTHERS
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
        saved = _saving(of_day, prices)
        paid_nano = sum(row.used.cost_nano for row in of_day)
        own_nano = sum(row.used.own_cost_nano for row in of_day)
        is_unknown = saved.unpriced and not saved.is_known
        drawn.append([start, paid_nano, own_nano, None if is_unknown else max(0, saved.saved_nano)])
    return drawn


def starts_of(now_ns: int, days: int) -> list[int]:
    """Return the start of each day in seconds since the epoch, today last."""
    today = now_ns // DAY_NS
    return [day * DAY_NS // _NS_PER_S for day in range(today - days + 1, today + 1)]


def _money(rows: Sequence[Row]) -> tuple[int, int]:
    return sum(row.used.cost_nano for row in rows), sum(row.used.own_cost_nano for row in rows)


def charged(rows: Iterable[Row], since_day: str) -> int:
    """Return what callers were charged since that day, in nano-USD."""
    return sum(row.used.charge_nano for row in rows if row.day >= since_day)


def _grouped(rows: Iterable[Row], name_of: Callable[[Row], str]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[name_of(row)].append(row)
    return groups


def _spent(name: str, rows: Sequence[Row], prices: Mapping[str, Sequence[Price]]) -> Spent:
    by_lane: dict[str, int] = defaultdict(int)
    for row in rows:
        by_lane[row.lane] += _tokens(row.used)
    return Spent(
        name,
        sum(row.used.requests for row in rows),
        # Cached answers were paid for when they were first computed.
        sum(tokens for lane, tokens in by_lane.items() if lane != FROM_CACHE),
        local_share(by_lane),
        sum(row.used.charge_nano for row in rows),
        sum(row.used.cost_nano for row in rows),
        sum(row.used.own_cost_nano for row in rows),
        _saving(rows, prices),
    )


def _saving(rows: Iterable[Row], prices: Mapping[str, Sequence[Price]]) -> Saving:
    return saving([(row.model, row.used) for row in rows if row.lane in OWN_LANES], prices)


def _tokens(used: UsageTotal) -> int:
    return used.prompt_tokens + used.completion_tokens

"""The last thirty days as rows for charts and tables: tokens, money, local share, savings. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from accounting.ledger.postings import FROM_CACHE
from accounting.metering.usage import UsageTotal
from accounting.money import Price
from gateway.billing.usage_report import DAY_NS
from gateway.console.figures.now import LANES, ChartRow
from gateway.console.figures.savings import Saving, local_share, own_work, saving
from gateway.console.figures.usage import Row, day_start_s

OTHERS = "others"
# As many as a chart has colors, less one for the others.
_MODELS_DRAWN = 5
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


def month(rows: Sequence[Row], prices: Mapping[str, Sequence[Price]], now_ns: int, days: int) -> Month:
    """Return the figures of `rows`, which cover the last `days` days, today included."""
    worked = [row for row in rows if row.lane != FROM_CACHE]
    lanes = tuple(lane for lane in LANES if any(row.lane == lane and _tokens(row.used) for row in worked))
    named = _grouped(rows, lambda row: row.model)
    models = sorted(
        (_spent(name, some, prices) for name, some in named.items()), key=lambda s: (-s.tokens, s.name)
    )
    busy = [spent.name for spent in models if spent.tokens]
    drawn = busy[:_MODELS_DRAWN]
    names = (*drawn, OTHERS) if len(busy) > len(drawn) else tuple(drawn)
    today = now_ns // DAY_NS
    starts = [day * DAY_NS // _NS_PER_S for day in range(today - days + 1, today + 1)]
    by_day = {day_start_s(day): some for day, some in _grouped(rows, lambda row: row.day).items()}
    return Month(
        _spent("", rows, prices),
        tuple(models),
        lanes,
        _by_day(worked, starts, lanes, lambda row: row.lane),
        names,
        _by_day(worked, starts, names, lambda row: row.model if row.model in drawn else OTHERS),
        [[start_s, *_money(by_day.get(start_s, []))] for start_s in starts],
        sum(row.used.requests for row in rows if row.lane == FROM_CACHE),
    )


def _by_day(
    rows: Iterable[Row], starts: Sequence[int], names: Sequence[str], name_of: Callable[[Row], str]
) -> list[ChartRow]:
    tokens: dict[tuple[int, str], int] = defaultdict(int)
    for row in rows:
        tokens[day_start_s(row.day), name_of(row)] += _tokens(row.used)
    return [[start_s, *(tokens[start_s, name] for name in names)] for start_s in starts]


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
        saving(own_work((row.lane, row.model, row.used) for row in rows), prices),
    )


def _tokens(used: UsageTotal) -> int:
    return used.prompt_tokens + used.completion_tokens

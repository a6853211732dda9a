"""Format results as Markdown: the promised figures, then all contestants side by side."""

from collections.abc import Iterable, Sequence

from bench.gateway.arena import Window
from bench.gateway.contestants import Name
from bench.gateway.rounds import CROWD, EVENTS, MANY, ONE, SOME, STREAMS, Results, Scenario
from bench.gateway.verdicts import Figure


def promises(figures: Iterable[Figure]) -> str:
    rows = (
        [each.name, _value(each), _range(each), _bound(each, each.must), _bound(each, each.aim), each.reached]
        for each in figures
    )
    return _table(["figure", "measured", "range", "must", "aim", "reached"], rows)


def everybody(results: Results) -> str:
    head = [
        "gateway",
        "CPU us/request c8",
        "c64",
        "requests/s c64",
        "core busy c64",
        "added p50 ms c1",
        "p99",
        f"CPU us/stream of {EVENTS} s16",
        "streams/s s256",
        "event p99 ms s256",
        "CPU us/stream s256",
        "start s",
        "CPU s",
        "RSS MB",
        "after MB",
        "errors",
    ]
    return _table(head, (_row(results, name) for name in results.starts))


def _row(results: Results, name: Name) -> list[str]:
    start = results.starts[name]

    def cell(scenario: Scenario, figure: str) -> str:
        return _number(results.median(name, scenario, lambda window: getattr(window, figure)))

    return [
        name,
        cell(SOME, "cpu_us"),
        cell(MANY, "cpu_us"),
        cell(MANY, "per_s"),
        cell(MANY, "busy"),
        *(_number(_added_ms(results, name, which)) for which in ("p50", "p99")),
        cell(STREAMS, "cpu_us"),
        cell(CROWD, "per_s"),
        _number(results.median(name, CROWD, _event_p99_ms)),
        cell(CROWD, "cpu_us"),
        *(_number(value) for value in (start.wall_s, start.cpu_s, start.rss_mb, results.rss_after_mb[name])),
        str(sum(results.errors(name).values())),
    ]


def _added_ms(results: Results, name: Name, which: str) -> float | None:
    """Return the difference of the medians; None for the upstream itself."""
    if name == "direct":
        return None
    both = [results.median(whose, ONE, lambda window: _latency(window, which)) for whose in (name, "direct")]
    mine, direct = both
    return None if mine is None or direct is None else (mine - direct) / 1e3


def _latency(window: Window, which: str) -> float | None:
    return getattr(window.saw.latency, which) if window.saw.latency else None


def _event_p99_ms(window: Window) -> float | None:
    return window.saw.transit.p99 / 1e3 if window.saw.transit else None


def _value(figure: Figure) -> str:
    return "-" if figure.value is None else f"{_number(figure.value)}{figure.unit}"


def _range(figure: Figure) -> str:
    if len(figure.values) < 2:
        return ""
    return f"{_number(min(figure.values))} to {_number(max(figure.values))}"


def _bound(figure: Figure, bound: float | None) -> str:
    if bound is None:
        return ""
    return f"{'>=' if figure.is_least else '<='} {_number(bound)}{figure.unit}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)

"""Compare engines: medians, ratios of the same round, and the project's own targets."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.streams import Speeds
from bench.work import Measured


@dataclass(frozen=True, slots=True)
class Demand:
    """A required ratio to the base engine, and a target."""

    title: str
    work: str
    figure: str
    must: float
    aim: float
    at_most: bool = False

    def verdict(self, ratio: float) -> str:
        if self.at_most:
            return "aim" if ratio <= self.aim else "must" if ratio <= self.must else "missed"
        return "aim" if ratio >= self.aim else "must" if ratio >= self.must else "missed"


_STREAM, _ALL, _FIRST = "stream_tokens_per_s", "decode_tokens_per_s", "ttft_ms"

DEMANDS = (
    Demand("LAN, 1 stream, tokens/s", "lan-1", _STREAM, 1.0, 1.3),
    Demand("LAN, 8 streams, tokens/s of all", "lan-8", _ALL, 3.0, 4.0),
    Demand("Wi-Fi-like, 8 streams, tokens/s of all", "wifi-8", _ALL, 4.0, 5.0),
    Demand("WAN, 1 stream, tokens/s", "wan-1", _STREAM, 1.0, 1.2),
    Demand("WAN, 1 stream, grounded, tokens/s", "wan-1-grounded", _STREAM, 1.5, 2.5),
    Demand("WAN, 8 streams, tokens/s of all", "wan-8", _ALL, 4.0, 6.0),
    Demand("LAN, time to first token of 512, ms", "lan-1", _FIRST, 0.5, 0.25, at_most=True),
)


def speeds_table(rows: Sequence[Measured]) -> str:
    """Return every engine's medians as Markdown, and failures with their first reason."""
    lines = [
        "",
        "| work | engine | rounds | tokens/s of a stream | of all, decoding | TTFT ms | gap p50 / p99 ms | load |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for work, engine in sorted({(row.work, row.engine) for row in rows}):
        here = [row for row in rows if (row.work, row.engine) == (work, engine)]
        good = [row.speeds for row in here if row.speeds]
        if not good:
            lines.append(f"| {work} | {engine} | 0 of {len(here)} | {here[0].error} | | | | |")
            continue
        load = statistics.median(row.load for row in here)
        lines.append(
            f"| {work} | {engine} | {len(good)} of {len(here)} | {_median(good, _STREAM):.2f} "
            f"| {_median(good, _ALL):.2f} | {_median(good, _FIRST):.0f} "
            f"| {_median(good, 'gap_p50_ms'):.0f} / {_median(good, 'gap_p99_ms'):.0f} | {load:.1f} |"
        )
    return "\n".join(lines)


def _median(speeds: Sequence[Speeds], figure: str) -> float:
    return statistics.median(float(getattr(one, figure)) for one in speeds)


def ratios_table(rows: Sequence[Measured], measured: str, base: str) -> str:
    """Return the demands as Markdown: the median of each round's own ratio, and its range."""
    lines = [
        "",
        f"| what | {base} | {measured} | ratio (range) | must | aim | reached |",
        "|---|---|---|---|---|---|---|",
    ]
    for demand in DEMANDS:
        pairs = _pairs(rows, demand, measured, base)
        must, aim = (f"{'<=' if demand.at_most else '>='} {bound:g}x" for bound in (demand.must, demand.aim))
        if not pairs:
            lines.append(f"| {demand.title} | | | not measured | {must} | {aim} | |")
            continue
        ratios = [own / other for own, other in pairs]
        ratio = statistics.median(ratios)
        own, other = (statistics.median(side) for side in zip(*pairs, strict=True))
        lines.append(
            f"| {demand.title} | {other:.1f} | {own:.1f} | {ratio:.2f}x ({min(ratios):.2f}-{max(ratios):.2f}) "
            f"| {must} | {aim} | {demand.verdict(ratio)} |"
        )
    return "\n".join(lines)


def _pairs(rows: Sequence[Measured], demand: Demand, measured: str, base: str) -> list[tuple[float, float]]:
    """Return the two engines' figures for each round in which both were measured."""
    by_round = {
        (row.engine, row.round): float(getattr(row.speeds, demand.figure))
        for row in rows
        if row.work == demand.work and row.speeds
    }
    return [
        (own, by_round[base, number])
        for (engine, number), own in by_round.items()
        if engine == measured and (base, number) in by_round
    ]

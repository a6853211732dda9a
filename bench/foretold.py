"""Compare what the planner predicts for a pipeline over an emulated link with the measurement.

The nodes' own measurements are those that they keep on disk; the links are the emulated ones. The table also has
the plan's own prediction, made with the links of that time.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.network import LINKS
from bench.work import Measured, Work
from cluster.machine import Pace
from cluster.models.manifest import read_config
from cluster.models.model_card import ModelCard, Precision, read_card
from cluster.nodes.probe import probe_machine
from cluster.plans.candidates import plain_wire
from cluster.plans.forecast import Costs, PipelineForecast, Prediction
from cluster.plans.network import Link


class _Kept(msgspec.Struct, frozen=True):
    """The part of a node's pace.json that is used here."""

    pace: Pace


def table(rows: Sequence[Measured], works: Sequence[Work], folder: Path, model: Path, precision: Precision) -> str:
    """Return a Markdown table for what engines.millrace kept in `folder`, without works whose answers quote."""
    lines = [
        "",
        "| work | figure | plan said | foretold | measured | error |",
        "|---|---|---|---|---|---|",
    ]
    card = read_card(read_config(model))
    for work in works:
        good = [row for row in rows if row.work == work.name and row.speeds]
        if not good or work.phrase:
            continue
        foretold = foretell(card, precision, good[0].facts, folder, work)
        planned: Prediction | None = msgspec.convert(good[0].facts.get("predicted"), Prediction | None)
        speeds = [row.speeds for row in good if row.speeds]
        if work.streams == 1:
            token_s = 1 / statistics.median(one.stream_tokens_per_s for one in speeds)
            token_ms = 1000 * planned.token_s if planned else None
            lines.append(_line(work, "ms a token", token_ms, 1000 * foretold.token_s, 1000 * token_s))
            ttft_ms = statistics.median(one.ttft_ms for one in speeds)
            first_ms = 1000 * planned.first_token_s if planned else None
            lines.append(_line(work, "TTFT ms", first_ms, 1000 * foretold.first_token_s, ttft_ms))
        else:
            measured = statistics.median(one.decode_tokens_per_s for one in speeds)
            of_all = planned.tokens_per_s if planned and planned.streams == work.streams else None
            lines.append(_line(work, "tokens/s of all", of_all, foretold.tokens_per_s, measured))
    return "\n".join(lines)


def _line(work: Work, figure: str, planned: float | None, foretold: float, measured: float) -> str:
    planned_text = "" if planned is None else f"{planned:.1f}"
    error = f"{100 * (foretold / measured - 1):+.0f} %"
    return f"| {work.name} | {figure} | {planned_text} | {foretold:.1f} | {measured:.1f} | {error} |"


def foretell(card: ModelCard, precision: Precision, facts: dict[str, Any], folder: Path, work: Work) -> Prediction:
    """Return the prediction for the pipeline in `facts` (as `millrace nodes --json` prints them)."""
    partition = [node for node in facts["nodes"] if node["layers"]]
    emulated = LINKS[work.link]
    link = Link(
        delay_s=emulated.round_trip_ms / 2000, bytes_per_s=emulated.mbit * 1e6 / 8 if emulated.mbit else 1e9
    )
    forecast = PipelineForecast(
        costs=Costs(card, precision, plain_wire(precision)),
        machines=[probe_machine(pace=_pace(folder, node["node"])) for node in partition],
        counts=[node["layers"][1] - node["layers"][0] + 1 for node in partition],
        links=[link] * len(partition) if len(partition) > 1 else [],
    )
    return forecast.predict(work.streams, ())


def _pace(folder: Path, name: str) -> Pace:
    """Return a node's measurement of itself. node-1 is the gateway's own; the others joined."""
    local, joined = folder / "gateway" / "nodes" / name, folder / name / "node"
    kept = next(place for place in (local, joined) if place.exists()) / "pace.json"
    return msgspec.json.decode(kept.read_bytes(), type=_Kept).pace

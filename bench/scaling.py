"""Measure the gain of a second machine: two stages with 16 streams over twice one stage with 8, one core each.

The micro-batch stays at 8 rows, so ideal stages give 1. Links are this machine's loopback, and an emulated cable
with a round trip of 5 or 10 ms and no rate limit, all with mutual TLS. Gateway, client and the first stage share
the first core in every case.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.chain import make_chain
from bench.engines import millrace
from bench.network import LINKS, Network, Place, emulated, local_places
from bench.work import Measured, Work, do, warm_up

PROMPT_TOKENS, TOKENS, ROWS = 64, 128, 8
LOOPBACK = "loopback"


def main(arguments: list[str]) -> None:
    given = _parse(arguments)
    model = make_chain(given.models)
    settings = {"MILLRACE_CLUSTER__PRECISION": given.precision}
    settings |= {f"MILLRACE_{name}": value for name, _, value in (pair.partition("=") for pair in given.set)}
    print(f"{os.cpu_count()} cores, {given.precision}, {PROMPT_TOKENS} prompt and {TOKENS} output tokens")
    with tempfile.TemporaryDirectory(prefix="millrace-scaling-") as scratch, ExitStack() as stack:
        emulation = [link for link in given.links if link != LOOPBACK]
        network = stack.enter_context(emulated()) if emulation else None
        bench = _Bench(Path(scratch), model, settings, network)
        table: dict[str, list[tuple[float, float]]] = {link: [] for link in given.links}
        for number in range(given.rounds):
            one = bench.tokens_per_s("one", local_places()[:1], [LOOPBACK], ROWS, number)
            two = {LOOPBACK: 0.0}
            if LOOPBACK in given.links:
                two = bench.tokens_per_s("two", local_places(), [LOOPBACK], 2 * ROWS, number)
            if network:
                two |= bench.tokens_per_s("apart", network.places, emulation, 2 * ROWS, number)
            for link in given.links:
                table[link].append((one[LOOPBACK], two[link]))
    _print(table)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench scaling", description=__doc__)
    parser.add_argument("--models", type=Path, required=True, help="folder of the model, created if missing")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--links", nargs="*", default=[LOOPBACK, "5ms", "10ms"], choices=[LOOPBACK, *LINKS])
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a MILLRACE_ setting")
    return parser.parse_args(arguments)


class _Bench:
    """Start clusters and measure them. Machines that have joined once stay known between rounds."""

    def __init__(self, scratch: Path, model: Path, settings: dict[str, str], network: Network | None) -> None:
        self._scratch = scratch
        self._model = model
        self._settings = settings
        self._network = network

    def tokens_per_s(
        self, name: str, places: Sequence[Place], links: Sequence[str], streams: int, number: int
    ) -> dict[str, float]:
        """Return all streams' decode speed over each link. End the benchmark if a stream fails."""
        if self._network:
            self._network.shape(LINKS["open"])
        speeds: dict[str, float] = {}
        with millrace(self._scratch / name, self._model, places, self._settings, self._scratch) as endpoint:
            warm_up(endpoint, number)
            for link in links:
                if self._network and link != LOOPBACK:
                    self._network.shape(LINKS[link])
                row = do(name, endpoint, Work(link, link, streams, PROMPT_TOKENS, TOKENS), number)
                speeds[link] = _decode(row)
        return speeds


def _decode(row: Measured) -> float:
    if row.speeds is None:
        raise SystemExit(f"{row.engine} over {row.work}: {row.error}")
    return row.speeds.decode_tokens_per_s


def _print(table: dict[str, list[tuple[float, float]]]) -> None:
    print("| links | one stage, 8 streams | two stages, 16 streams | two over twice one (range) | load |")
    print("|---|---|---|---|---|")
    for link, pairs in table.items():
        shares = [two / (2 * one) for one, two in pairs]
        one, two = (statistics.median(side) for side in zip(*pairs, strict=True))
        spread = f"{statistics.median(shares):.2f} ({min(shares):.2f}-{max(shares):.2f})"
        print(f"| {link} | {one:.1f} | {two:.1f} | {spread} | {os.getloadavg()[0]:.1f} |")

"""Compare our cluster and llama.cpp in one run: two emulated machines with one core each, shaped links, 0.5 B in 8
bits.

Needs Linux, root and a folder with llama.cpp's `llama-server` and `ggml-rpc-server` (built with GGML_RPC). Targets
alternate within every round, so each round's ratio is from the same minutes of the same machine.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from bench import engines, foretold, standing
from bench.chain import LAYERS, make_chain, make_gguf
from bench.engines import Endpoint, EngineFailed
from bench.network import LINKS, Network, emulated
from bench.work import Measured, Work, do, warm_up
from cluster.models.model_card import Precision

# How many consecutive words of its prompt a grounded answer quotes.
PHRASE_WORDS = 16
BASE, MILLRACE = "llama-rpc", "millrace"

Start = Callable[[], AbstractContextManager[Endpoint]]


WORKS = (
    Work("lan-1", "lan", 1, 512, 128),
    Work("lan-8", "lan", 8, 64, 64),
    Work("wifi-8", "wifi", 8, 64, 64),
    Work("wan-1", "wan", 1, 512, 128),
    Work("wan-1-grounded", "wan", 1, 512, 128, phrase=PHRASE_WORDS),
    Work("wan-8", "wan", 8, 64, 64),
)


def main(arguments: list[str]) -> None:
    given = _parse(arguments)
    checkpoint = make_chain(given.models)
    works = [work for work in WORKS if not given.works or work.name in given.works]
    with _scratch(given.keep) as scratch, emulated() as network:
        starts = _starts(given, checkpoint, scratch, network)
        print(f"{os.cpu_count()} cores, {given.rounds} rounds, engines: {', '.join(starts)}", flush=True)
        rows: list[Measured] = []
        for number in range(given.rounds):
            # Reverse the order every second time, so that no engine always runs first.
            for name in list(starts)[:: -1 if number % 2 else 1]:
                for row in _measure(name, starts[name], works, number, network):
                    rows.append(row)
                    print(json.dumps(row.as_dict()), file=sys.stderr, flush=True)
                    if given.out:
                        with given.out.open("a") as file:
                            file.write(json.dumps(row.as_dict()) + "\n")
        _report(rows, works, scratch, checkpoint, given.precision)


def _report(rows: list[Measured], works: list[Work], scratch: Path, model: Path, precision: Precision) -> None:
    print(standing.speeds_table(rows))
    print(standing.ratios_table(rows, MILLRACE, BASE))
    if own_rows := [row for row in rows if row.engine == MILLRACE and row.speeds]:
        print("\nMillrace's plan: " + "; ".join(own_rows[-1].facts["plan"]))
        print(foretold.table(own_rows, works, scratch / MILLRACE, model, precision))


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench peers", description=__doc__)
    parser.add_argument("--llama-bin", type=Path, help="folder with llama-server and ggml-rpc-server")
    parser.add_argument("--models", type=Path, required=True, help="folder of the model, created if missing")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", nargs="*", help="llama-rpc, llama-alone, llama-rpc-ngram, millrace")
    parser.add_argument("--works", nargs="*", choices=[work.name for work in WORKS], help="all by default")
    parser.add_argument("--precision", default="int8", help="Millrace's precision; llama.cpp runs Q8_0")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a MILLRACE_ setting")
    parser.add_argument("--keep", type=Path, help="folder for logs and joined nodes, kept afterwards")
    parser.add_argument("--out", type=Path, help="every measurement as a line of JSON")
    return parser.parse_args(arguments)


@contextmanager
def _scratch(keep: Path | None) -> Iterator[Path]:
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="millrace-peers-") as folder:
        yield Path(folder)


def _starts(given: argparse.Namespace, model: Path, scratch: Path, network: Network) -> dict[str, Start]:
    """Return how each engine is started, by name."""
    places = network.places
    settings = {"MILLRACE_CLUSTER__PRECISION": given.precision}
    settings |= {f"MILLRACE_{name}": value for name, _, value in (pair.partition("=") for pair in given.set)}
    starts: dict[str, Start] = {}
    if given.llama_bin:
        gguf, half = make_gguf(model), LAYERS // 2
        llama = partial(engines.llama_rpc, given.llama_bin, gguf, places, scratch, half)
        starts["llama-rpc"] = llama
        starts["llama-alone"] = partial(engines.llama_alone, given.llama_bin, gguf, places, scratch)
        # By default it searches twelve words in a row and drafts forty-eight, which gains less here.
        ngram = ["--spec-type", "ngram-simple"]
        ngram += ["--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "16"]
        starts["llama-rpc-ngram"] = partial(llama, ngram)
    starts[MILLRACE] = partial(engines.millrace, scratch / MILLRACE, model, places, settings, scratch)
    chosen = given.engines or [name for name in starts if name != "llama-rpc-ngram"]
    if unknown := sorted(set(chosen) - set(starts)):
        sys.exit(f"no such engine here: {', '.join(unknown)}; there are {', '.join(starts)} (--llama-bin?)")
    return {name: starts[name] for name in chosen}


def _measure(name: str, start: Start, works: list[Work], number: int, network: Network) -> Iterator[Measured]:
    """Run one engine's turn: it starts and loads over open links, then does each work over its own."""
    network.shape(LINKS["open"])
    try:
        with start() as endpoint:
            warm_up(endpoint, number)
            for work in works:
                if name == "llama-alone" and work.link != "lan":
                    continue  # It has no link.
                network.shape(LINKS[work.link])
                yield do(name, endpoint, work, number)
    except EngineFailed as failure:
        yield Measured(engine=name, work="start", round=number, error=str(failure))

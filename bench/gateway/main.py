"""Measure `python -m bench gateway`: the cost of requests through Millrace, nginx, SGLang's router, LiteLLM
(Linux).
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import msgspec

from bench.gateway.arena import Arena, opened
from bench.gateway.contestants import NAMES, Name, NotHere
from bench.gateway.rounds import MANY, Results, run
from bench.gateway.tables import everybody, promises
from bench.gateway.verdicts import MILLRACE, Figure, figures, soaked

_PROGRAMS = Path(__file__).parents[2] / ".bench"
# This part of the soak runs before memory is first read, because caches and indexes fill up until then.
_SOAK_WARM_UP = 30_000
_SOAK_S = 300.0


def main(arguments: list[str]) -> None:
    options = _parser().parse_args(arguments)
    names: list[Name] = list(dict.fromkeys(["direct", *options.gateways]))
    try:
        with (
            tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder,
            opened(
                Path(folder),
                options.programs,
                server_core=options.server_core,
                load_core=options.load_core,
                realtime=options.realtime,
                prompt_bytes=options.prompt_bytes,
            ) as arena,
        ):
            results = run(arena, names, rounds=options.rounds, seconds=options.seconds, report=_tell)
            found = figures(results)
            if options.soak and MILLRACE in results.starts:
                found.append(_soak(arena, options.soak))
    except NotHere as reason:
        sys.exit(f"error: {reason}")
    _print(results, found)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench gateway", description=__doc__)
    parser.add_argument("--gateways", nargs="+", choices=NAMES, default=NAMES, help="all by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a window")
    parser.add_argument(
        "--soak", type=int, default=100_000, help="further requests to Millrace, whose RSS must not grow; 0: none"
    )
    parser.add_argument("--prompt-bytes", type=int, default=500)
    parser.add_argument("--server-core", type=int, default=0)
    parser.add_argument("--load-core", type=int, default=1)
    parser.add_argument("--realtime", action="store_true", help="run what measures delay before all else (root)")
    parser.add_argument(
        "--programs", type=Path, default=_PROGRAMS, help="where sglang/ and litellm/ are installed"
    )
    return parser


def _soak(arena: Arena, requests: int) -> Figure:
    """Measure memory before and after `requests` requests, in a process that has served for a while."""
    order = MANY.order(_SOAK_S)
    arena.measure(MILLRACE, msgspec.structs.replace(order, requests_max=_SOAK_WARM_UP))
    before_mb = arena.rss_mb(MILLRACE)
    arena.measure(MILLRACE, msgspec.structs.replace(order, requests_max=requests))
    return soaked(before_mb, arena.rss_mb(MILLRACE), requests)


def _print(results: Results, found: list[Figure]) -> None:
    paces = results.paces_ms
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(promises(found))
    print(f"\n{everybody(results)}")
    for name, reason in results.absent.items():
        print(f"\n{name} is missing: {reason}")
    if paces:
        print(
            f"\nA fixed loop on the server core took {paces[len(paces) // 2]:.1f} ms at the median, "
            f"from {paces[0]:.1f} to {paces[-1]:.1f}; load of the machine {load}."
        )


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)

"""`python -m bench NAME [...]`: run one benchmark, or without a name all that need nothing but this machine."""

import argparse
import sys
from collections.abc import Callable

from bench import cluster, decode, failover, kernels, ledger, peers, quality, routing, scaling, speculation
from bench.gateway import main as gateway
from cluster.nodes.process import configure_logs

BENCHMARKS: dict[str, Callable[[list[str]], None]] = {
    "cluster": cluster.main,
    "decode": decode.main,
    "failover": failover.main,
    "gateway": gateway.main,
    "kernels": kernels.main,
    "ledger": ledger.main,
    "peers": peers.main,
    "quality": quality.main,
    "routing": routing.main,
    "scaling": scaling.main,
    "speculation": speculation.main,
}
# The others want root, a folder for a model of a gigabyte, or other people's programs.
BY_DEFAULT = ("cluster", "ledger")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", nargs="?", choices=BENCHMARKS, help=f"{' and '.join(BY_DEFAULT)} by default")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="the benchmark's own; see NAME --help")
    given = parser.parse_args()
    configure_logs("json:error")
    for name in [given.name] if given.name else BY_DEFAULT:
        BENCHMARKS[name](given.arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())

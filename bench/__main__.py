"""`python -m bench NAME [...]`: run one benchmark, or all of them without a name."""

import argparse
import sys
from collections.abc import Callable

from bench import cluster, ledger
from cluster.process import configure_logs

BENCHMARKS: dict[str, Callable[[list[str]], None]] = {"cluster": cluster.main, "ledger": ledger.main}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", nargs="?", choices=BENCHMARKS, help="all of them by default")
    given, rest = parser.parse_known_args()
    configure_logs("json:error")
    for name in [given.name] if given.name else BENCHMARKS:
        BENCHMARKS[name](rest)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Run one benchmark: `python -m bench NAME [...]`. Without a name, run all that need nothing but this machine."""

import argparse
import signal
import sys
from collections.abc import Callable

from bench import (
    check,
    cluster,
    decode,
    failover,
    gpu,
    holding,
    kernels,
    ledger,
    owner,
    path,
    peers,
    proofs,
    quality,
    restart,
    routing,
    scaling,
    speculation,
)
from bench.console import main as console
from bench.gateway import main as gateway
from runtime.logs import configure_logs

BENCHMARKS: dict[str, Callable[[list[str]], None]] = {
    "check": check.main,
    "cluster": cluster.main,
    "console": console.main,
    "decode": decode.main,
    "failover": failover.main,
    "gateway": gateway.main,
    "gpu": gpu.main,
    "holding": holding.main,
    "kernels": kernels.main,
    "ledger": ledger.main,
    "owner": owner.main,
    "path": path.main,
    "peers": peers.main,
    "proofs": proofs.main,
    "quality": quality.main,
    "restart": restart.main,
    "routing": routing.main,
    "scaling": scaling.main,
    "speculation": speculation.main,
}
# The others need root, a folder for a model of a gigabyte, or other programs.
BY_DEFAULT = ("cluster", "ledger")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", nargs="?", choices=BENCHMARKS, help=f"{' and '.join(BY_DEFAULT)} by default")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="options of the benchmark; see NAME --help")
    given = parser.parse_args()
    configure_logs("json:error")
    # A signal from outside must also end the processes that were started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    for name in [given.name] if given.name else BY_DEFAULT:
        BENCHMARKS[name](given.arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())

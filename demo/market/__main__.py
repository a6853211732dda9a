"""Run `make demo-market`: three gateways with separate ledgers trade one answer; then print what each of them
booked.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from demo.market.market import Market, open_market
from demo.processes import end_on_signals

QUESTION = "What is a river?"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m demo.market", description=__doc__)
    parser.add_argument("--once", action="store_true", help="stop after the answer and what it paid")
    parser.add_argument("--question", default=QUESTION)
    given = parser.parse_args()
    end_on_signals()
    with (
        tempfile.TemporaryDirectory(prefix="millrace-demo-market-") as folder,
        open_market(Path(folder)) as market,
    ):
        summary = market.trade(given.question)
        if not given.once:
            _explain(market)
        print(json.dumps(summary), flush=True)
        if not given.once:
            _wait_for_ctrl_c()
    return 0 if summary["ok"] else 1


def _explain(market: Market) -> None:
    print(f"base URL  {market.buyer.root}/v1")
    print(f"API key   {market.buyer.api_key}")
    print("Any OpenAI client can buy answers there now. Ctrl-C ends the demo.\n")


def _wait_for_ctrl_c() -> None:
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        print("\nstopping", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())

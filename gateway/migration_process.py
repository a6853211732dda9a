"""Migrates a database's tables, in a separate process that `gateway.upgrade` starts.

It reads a DSN from stdin, upgrades that database, prints the result on stdout, and exits. If stdin closes before
that, it exits immediately, with nothing committed.
"""

import sys

import msgspec

from gateway.database import DatabaseUnusable, open_upgraded
from gateway.upgrade import Outcome
from runtime.children import read_question


def main() -> None:
    dsn = msgspec.json.decode(read_question(), type=str)
    outcome = Outcome()
    try:
        open_upgraded(dsn).dispose()
    except DatabaseUnusable as error:
        outcome = Outcome(str(error))
    sys.stdout.write(f"\n{msgspec.json.encode(outcome).decode()}\n")
    sys.exit(1 if outcome.problem else 0)


if __name__ == "__main__":
    main()

"""Migrates a database's tables, in a separate process that `gateway.upgrade` starts.

It reads a DSN from stdin, upgrades that database, prints the result on stdout, and exits. If stdin closes before
that, it exits immediately, with nothing committed.
"""

import os
import sys
import threading

import msgspec

from gateway.database import DatabaseUnusable, open_upgraded
from gateway.upgrade import Outcome


def main() -> None:
    if not (line := sys.stdin.buffer.readline()).endswith(b"\n"):
        sys.exit(1)  # The gateway exited before it sent a DSN.
    dsn = msgspec.json.decode(line, type=str)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    outcome = Outcome()
    try:
        open_upgraded(dsn).dispose()
    except DatabaseUnusable as error:
        outcome = Outcome(str(error))
    sys.stdout.write(f"\n{msgspec.json.encode(outcome).decode()}\n")
    sys.exit(1 if outcome.problem else 0)


def _end_with_stdin() -> None:
    """Exit when stdin closes, because the gateway is gone."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    main()

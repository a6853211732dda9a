"""Alembic, by itself: it is imported where tables are behind the code, once in a version, and never to serve.

As a program (`gateway.upgrading`) it reads a DSN from stdin, brings that database's tables up to date, says on
stdout how that went, and ends: at once, and with nothing committed, when stdin does.
"""

import os
import sys
import threading
from pathlib import Path

import msgspec
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

import migrations


def migrate(connection: Connection) -> None:
    """Run every migration that the database has not had, in the connection's own transaction."""
    command.upgrade(config_of(connection), "head")


def config_of(connection: Connection) -> Config:
    """Alembic's view of our migrations, on this connection."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def main() -> None:
    from gateway.database import DatabaseUnusable, open_upgraded  # which imports this module for its part
    from gateway.upgrading import Outcome

    if not (asked := sys.stdin.buffer.readline()).endswith(b"\n"):
        sys.exit(1)  # The gateway was gone before it said what to migrate.
    dsn = msgspec.json.decode(asked, type=str)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    outcome = Outcome()
    try:
        open_upgraded(dsn).dispose()
    except DatabaseUnusable as error:
        outcome = Outcome(str(error))
    sys.stdout.write(f"\n{msgspec.json.encode(outcome).decode()}\n")
    sys.exit(1 if outcome.problem else 0)


def _end_with_stdin() -> None:
    """The gateway is gone, however that came."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    main()

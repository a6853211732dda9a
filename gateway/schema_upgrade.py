"""Migrations with Alembic. Imported only if tables are older than the code, and never while serving."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

import migrations


def migrate(connection: Connection) -> None:
    """Run all pending migrations in the connection's transaction."""
    command.upgrade(config_of(connection), "head")


def config_of(connection: Connection) -> Config:
    """Return Alembic's configuration for the migrations, on this connection."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config

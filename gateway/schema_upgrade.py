"""Uses Alembic. Imported only if tables are behind the code, once per version, and never while serving."""

from pathlib import Path

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

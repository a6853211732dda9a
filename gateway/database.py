"""Opens the database with its tables up to date; only this module knows the migrations' location."""

from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.exc import DBAPIError

import migrations
from runtime.database import DatabaseUnsupported, DatabaseVersionUnknown, bound_statements, open_engine, writing

_MIGRATION_LOCK = 0x6D696C6C
MIGRATION_TIMEOUT_S = 600


class DatabaseUnusable(RuntimeError):
    """The database cannot be opened. The text is for the operator and omits the DSN's password."""


def open_upgraded(dsn: str) -> Engine:
    """Open a database and migrate its tables. Raises DatabaseUnusable for any failure."""
    engine: Engine | None = None
    try:
        engine = open_engine(dsn)
        upgrade(engine)
    except (DatabaseUnsupported, DatabaseVersionUnknown) as error:
        reason = str(error)
    except UnicodeDecodeError:
        # SQLite returns damaged text unchanged, even in its own schema.
        reason = "it is damaged: it contains invalid text"
    except DBAPIError as error:
        # Without the driver's message, which may repeat the DSN.
        reason = f"is it there, is it a database, and are we let in? ({type(error.orig).__name__})"
    else:
        return engine
    if engine:
        engine.dispose()
    raise DatabaseUnusable(f"the database cannot be used: {reason}")


def is_behind(dsn: str) -> bool:
    """Return whether the tables are older than the code.

    Also False if that cannot be determined: opening the database then raises the reason.
    """
    try:
        engine = open_engine(dsn)
    except DatabaseUnsupported:
        return False
    try:
        with engine.connect() as connection:
            found = _revision(connection)
    except (DBAPIError, UnicodeDecodeError):
        return False
    finally:
        engine.dispose()
    return found is None or found in revisions()[:-1]


def upgrade(engine: Engine) -> None:
    """Upgrade the tables to this version of the code, completely or not at all.

    Any number of processes may start together: one migrates, the others wait and find nothing to do.

    Raises:
        DatabaseVersionUnknown: a newer version of the code upgraded the tables.
    """
    known = revisions()
    with writing(engine).begin() as connection:
        if engine.dialect.name == "postgresql":
            bound_statements(connection, MIGRATION_TIMEOUT_S)
            connection.execute(text(f"SET LOCAL lock_timeout = '{MIGRATION_TIMEOUT_S}s'"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK})
        found = _revision(connection)
        if found == known[-1]:
            return
        if found is not None and found not in known:
            raise DatabaseVersionUnknown(
                f"the database is at revision {found}, unknown to this version of Millrace: start a newer one"
            )
        from gateway.schema_upgrade import (
            migrate,  # Importing Alembic takes a fifth of a second and 7 MB; most starts do not need it.
        )

        migrate(connection)


def revisions() -> list[str]:
    """Return every known revision, oldest first, from the beginning of the migrations' file names."""
    folder = Path(migrations.__file__).parent / "versions"
    return sorted(path.name.partition("_")[0] for path in folder.glob("[0-9]*.py"))


def _revision(connection: Connection) -> str | None:
    """Return the revision of the database; None if there are no tables yet."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()

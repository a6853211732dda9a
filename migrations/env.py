"""What Alembic runs for every migration: on the connection that it is handed, in the caller's transaction."""

from alembic import context
from sqlmodel import SQLModel

import accounting.leading.tables
import accounting.ledger.accepted
import accounting.metering.tables
import accounting.payments.tables
import accounting.proofs.tables
import accounting.tables  # noqa: F401
import gateway.tables  # noqa: F401
import market.house.tables  # noqa: F401  all are imported to fill SQLModel.metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=SQLModel.metadata,
    # SQLite can roll schema changes back too; only its old Python driver could not.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()

"""Run every migration for Alembic, on the given connection and in the caller's transaction."""

from alembic import context
from sqlmodel import SQLModel

import accounting.ledger.accepted
import accounting.metering.tables
import accounting.payments.tables
import accounting.proofs.tables
import accounting.replication.tables
import accounting.tables  # noqa: F401
import gateway.tables  # noqa: F401
import market.marketplace.tables  # noqa: F401  imported to fill SQLModel.metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=SQLModel.metadata,
    # SQLite can also roll back schema changes; only its old Python driver could not.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()

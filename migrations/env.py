"""Run every migration for Alembic, on the given connection and in the caller's transaction."""

from alembic import context
from sqlmodel import SQLModel

# Every module that defines tables fills SQLModel.metadata.
# ruff: noqa: F401
import accounting.ledger.accepted
import accounting.metering.tables
import accounting.payments.tables
import accounting.proofs.tables
import accounting.replication.tables
import accounting.tables
import gateway.batches.tables
import gateway.billing.tables
import gateway.dialects.stored_responses.tables
import gateway.identity.tables
import gateway.lanes.tables
import gateway.limits.tables
import gateway.routing.tables
import market.marketplace.tables
import market.network.tables

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=SQLModel.metadata,
    # SQLite can also roll back schema changes; only its old Python driver could not.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()

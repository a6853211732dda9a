"""Remove the tables of leases and entries that gateways shared: keys say in their own tables that they are revoked."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for table in ("coordination_lease", "coordination_entry", "coordination_clock"):
        op.drop_table(table)


def downgrade() -> None:
    raise NotImplementedError("a ledger cannot be downgraded: restore the backup taken before the upgrade")

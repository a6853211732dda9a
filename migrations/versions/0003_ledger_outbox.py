"""Gateways that share the ledger reach its leader through a table: no addresses and no certificates any more."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_table("ledger_gateway")
    for column in ("address", "fingerprint"):
        op.drop_column("ledger_leader", column)
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "ledger_outbox",
        sa.Column("sent_ns", big, primary_key=True, autoincrement=False),
        sa.Column("gateway", sa.Text, primary_key=True),
        sa.Column("events", sa.LargeBinary, nullable=False),
        sa.Column("reply", sa.LargeBinary),
        sa.CheckConstraint("length(gateway) = 12", name="ledger_outbox_gateway"),
        # A group that is lost is sent again, so none has to survive a crash of the database.
        prefixes=["UNLOGGED"] if op.get_bind().dialect.name == "postgresql" else [],
    )


def downgrade() -> None:
    raise NotImplementedError("a ledger cannot be downgraded: restore the backup taken before the upgrade")

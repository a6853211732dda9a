"""Create signed records of other gateways, and seats and small entries that gateways share in the database."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "market_record",
        sa.Column("seq", BIG, primary_key=True),
        sa.Column("digest", sa.Text, nullable=False, unique=True),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("raw", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "coordination_seat",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("epoch", BIG, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("expires_ns", BIG, nullable=False),
    )
    op.create_table(
        "coordination_entry",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("value", sa.LargeBinary, nullable=False),
        sa.Column("revision", BIG, nullable=False),
        sa.Column("expires_ns", BIG),
    )
    # Revisions come from this row, one after the other: each writer waits for the previous one to commit.
    clock = op.create_table(
        "coordination_clock",
        sa.Column("id", BIG, primary_key=True, autoincrement=False),
        sa.Column("revision", BIG, nullable=False),
        sa.CheckConstraint("id = 1", name="coordination_clock_one"),
    )
    op.bulk_insert(clock, [{"id": 1, "revision": 0}])


def downgrade() -> None:
    raise NotImplementedError("books cannot be downgraded: restore the backup taken before the upgrade")

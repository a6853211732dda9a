"""What automatic top-ups may come to in a month."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    # Whoever had set up automatic top-ups before gets what a new wish gets that says nothing else: 500 USD.
    op.add_column("payer", sa.Column("auto_month_nano", BIG, nullable=False, server_default="500000000000"))


def downgrade() -> None:
    op.drop_column("payer", "auto_month_nano")
